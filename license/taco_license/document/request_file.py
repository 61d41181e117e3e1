"""Parses a license request: GPUs of one or more machines, as `nvidia-smi -L` lists them.

    GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)
      MIG 1g.5gb      Device  0: (UUID: MIG-…)

Each line with a UUID becomes one GPU of the license. A MIG instance can serve by itself, so it also
counts as one GPU. For a host without GPU, write a line with an id without spaces and an optional
description: `host-7 Xeon 8480`. Empty lines and lines that begin with # are ignored.
"""

import re
from collections.abc import Iterator

from taco_license.document.license_file import Gpu
from taco_license.errors import LicenseError

CPU_BRAND = "CPU"

_GPU = re.compile(r"GPU \d+: (?P<brand>\S.*?) \(UUID: (?P<uuid>GPU-[\w-]+)\)")
# Drivers before 470 name a MIG instance by its GPU and numbers: MIG-GPU-…/1/0.
_MIG = re.compile(r"MIG (?P<profile>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-[\w/-]+)\)")
_PLAIN = re.compile(r"(?P<uuid>[A-Za-z0-9][\w.:-]*)(\s+(?P<brand>\S.*))?")
# Other output of nvidia-smi and shells, whose first word must not be taken for a host's id.
_NOT_A_HOST = re.compile(r"GPU \d|MIG |NVIDIA-SMI |nvidia-smi |No devices|Unable |Failed |\w+: ")


def parse_request(text: str) -> list[Gpu]:
    """The GPUs of a request file in file order, without duplicates.

    Raises:
        LicenseError: a line is invalid, or the file names no GPU.
    """
    gpus: dict[str, Gpu] = {}
    for gpu in _parse_lines(text.removeprefix("\ufeff")):
        gpus.setdefault(gpu.uuid, gpu)
    if not gpus:
        raise LicenseError(
            "the request names no GPU: it must contain the output of `nvidia-smi -L`, or host ids"
        )
    return list(gpus.values())


def _parse_lines(text: str) -> Iterator[Gpu]:
    parent = ""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if match := _GPU.fullmatch(content):
            parent = match["brand"]
            yield Gpu(match["uuid"], parent)
        elif (match := _MIG.fullmatch(content)) and parent:
            yield Gpu(match["uuid"], f"{parent} MIG {match['profile']}")
        elif (match := _PLAIN.fullmatch(content)) and not _NOT_A_HOST.match(content):
            parent = ""
            yield Gpu(match["uuid"], match["brand"] or CPU_BRAND)
        else:
            raise LicenseError(
                f"line {number} is neither a line of `nvidia-smi -L` nor the id of a host: "
                f"{content[:80]!r}"
            )
