"""A request for a license: the GPUs of one machine or many, as `nvidia-smi -L` lists them.

    GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)
      MIG 1g.5gb      Device  0: (UUID: MIG-…)

Each line with a UUID is one GPU of the license; a MIG instance serves on its own, so it is one as
well. Workers on CPU hosts have no such line: there, any id without spaces, and behind it what the
host is, if that is to be seen: `host-7 Xeon 8480`. Empty lines and those that begin with # count
for nothing.
"""

import re
from collections.abc import Iterator

from taco_license.document.license_file import Gpu
from taco_license.errors import LicenseError

CPU_BRAND = "CPU"

_GPU = re.compile(r"GPU \d+: (?P<brand>\S.*?) \(UUID: (?P<uuid>GPU-[\w-]+)\)")
# Drivers before 470 name an instance by its GPU and numbers: MIG-GPU-…/1/0.
_MIG = re.compile(r"MIG (?P<profile>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-[\w/-]+)\)")
_PLAIN = re.compile(r"(?P<uuid>[A-Za-z0-9][\w.:-]*)(\s+(?P<brand>\S.*))?")
# What else nvidia-smi and shells print: to take its first word for a host would be a trap.
_NO_HOST = re.compile(r"GPU \d|MIG |NVIDIA-SMI |nvidia-smi |No devices|Unable |Failed |\w+: ")


def parse_request(text: str) -> list[Gpu]:
    """The GPUs of a request file, in its order; one that stands there again counts once.

    Raises:
        LicenseError: a line makes no sense, or there is no GPU at all.
    """
    gpus: dict[str, Gpu] = {}
    for gpu in _parse_lines(text.removeprefix("\ufeff")):
        gpus.setdefault(gpu.uuid, gpu)
    if not gpus:
        raise LicenseError("the request names no GPU")
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
        elif (match := _PLAIN.fullmatch(content)) and not _NO_HOST.match(content):
            parent = ""
            yield Gpu(match["uuid"], match["brand"] or CPU_BRAND)
        else:
            raise LicenseError(
                f"line {number} is neither one of `nvidia-smi -L` nor a host's id: {content[:80]!r}"
            )
