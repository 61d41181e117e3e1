"""Request files: output of `nvidia-smi -L` on one or more machines, and hosts without GPUs."""

import pytest

from taco_license.document.license_file import Gpu
from taco_license.document.request_file import parse_request
from taco_license.errors import LicenseError

ONE = "GPU-4c34f7a2-cd33-469b-019f-9af0bb76a073"
TWO = "GPU-47326f70-8b22-8137-0b48-1d3746ff7581"
MIG = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"

MACHINES = f"""\
GPU 0: Tesla T4 (UUID: {ONE})

# another machine
GPU 0: NVIDIA A100-SXM4-40GB (UUID: {TWO})
  MIG 3g.20gb     Device  0: (UUID: {MIG})
  MIG 1g.5gb+me   Device  1: (UUID: MIG-{TWO}/7/0)
cpu-host-1
cpu-host-2  Xeon 8480
1234 Fake Brand
"""

EXPECTED = [
    Gpu(ONE, "Tesla T4"),
    Gpu(TWO, "NVIDIA A100-SXM4-40GB"),
    Gpu(MIG, "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
    Gpu(f"MIG-{TWO}/7/0", "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me"),
    Gpu("cpu-host-1", "CPU"),
    Gpu("cpu-host-2", "Xeon 8480"),
    Gpu("1234", "Fake Brand"),
]


def test_many_machines_in_one_file() -> None:
    assert parse_request(MACHINES) == EXPECTED


def test_files_from_other_systems() -> None:
    assert parse_request("\ufeff" + MACHINES.replace("\n", "\r\n")) == EXPECTED


def test_duplicate_machines_count_once() -> None:
    assert parse_request(MACHINES + MACHINES) == EXPECTED


@pytest.mark.parametrize(
    "line",
    [
        "[root@node ~]# nvidia-smi -L",
        "root@node:~$ nvidia-smi -L",
        "nvidia-smi -L",
        "No devices found.",
        "Unable to determine the device handle for gpu 0000:3B:00.0: Unknown Error",
        "bash: nvidia-smi: command not found",
        f"GPU 0: Tesla T4 (UUID: {MIG})",
        f"GPU 0: (UUID: {ONE})",
        f"GPU 0: Tesla T4 (UUID: {ONE}",
        f"MIG 3g.20gb Device 0: (UUID: {MIG})",
    ],
)
def test_the_error_names_an_invalid_line(line: str) -> None:
    with pytest.raises(LicenseError, match="line 2 is neither"):
        parse_request(f"host-7\n{line}\n")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_a_request_without_a_gpu(text: str) -> None:
    with pytest.raises(LicenseError, match="names no GPU"):
        parse_request(text)
