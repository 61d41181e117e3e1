"""Installs torch into this interpreter's environment: the CPU build, or PyPI's CUDA build.

    .venv/bin/python deploy/install_torch.py --backend auto|cpu|cuda --constraint constraints.txt

PyPI's torch for Linux is the CUDA build. It needs several GB of NVIDIA libraries that a machine
without a GPU never loads. The CPU build comes from PyTorch's own index, which uv knows, or from the
folders in pip's configuration (`PIP_FIND_LINKS`).
"""

import argparse
import os
import re
import subprocess
import sys
from importlib import metadata

CPU_SIZE = "about 190 MB to download"
CUDA_SIZE = "several GB to download, NVIDIA's libraries included"
_CUDA_PACKAGE = re.compile(r"^ \+ (?:nvidia|cuda)-", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--constraint", required=True, help="file of pinned versions")
    args = parser.parse_args()
    backend = ("cuda" if has_nvidia_gpu() else "cpu") if args.backend == "auto" else args.backend
    if installed_backend() == backend:
        print(f"torch {metadata.version('torch')} ({backend}) is installed")
        return
    command = ["install", "--reinstall-package", "torch", "--constraint", args.constraint, "torch"]
    # As pip does: a process that may not write bytecode would compile 2,000 modules at each start.
    command += ["--compile-bytecode"]
    if backend == "cuda":
        print(f"Installing torch with CUDA: {CUDA_SIZE} (TORCH=cpu installs the CPU build)")
        code = run_uv(command).returncode
        if code == 0 and installed_backend() != "cuda":
            sys.exit("torch with CUDA was asked for, and pip is configured to offer a CPU build")
        sys.exit(code)
    # What pip is configured to offer may be a CPU build; otherwise it comes from PyTorch's index.
    for source in ([], ["--torch-backend", "cpu"]):
        plan = run_uv([*command, *source, "--dry-run"], capture=True)
        if plan.returncode == 0 and not _CUDA_PACKAGE.search(plan.stderr):
            print(f"Installing torch for CPUs: {CPU_SIZE} (TORCH=cuda installs the CUDA build)")
            sys.exit(run_uv([*command, *source]).returncode)
    sys.exit(
        "no CPU build of torch could be found for Python "
        f"{sys.version_info.major}.{sys.version_info.minor}: PyTorch's index cannot be reached, or "
        "has none. Put a wheel into a folder and set PIP_FIND_LINKS to it, or install PyPI's CUDA "
        f"build with TORCH=cuda ({CUDA_SIZE})."
    )


def has_nvidia_gpu() -> bool:
    """Whether NVIDIA's driver lists a GPU."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return listed.returncode == 0 and listed.stdout.startswith("GPU ")


def installed_backend() -> str | None:
    """`cpu` or `cuda`: the build in this environment; None if there is no torch."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    is_cuda = any(requirement.startswith(("nvidia-", "cuda-")) for requirement in requirements)
    return "cuda" if is_cuda else "cpu"


def run_uv(command: list[str], *, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs `uv pip COMMAND` on this environment, with pip's indexes, folders and authorities."""
    return subprocess.run(
        [sys.executable, "-m", "uv", "pip", *command, "--python", sys.executable],
        env=uv_settings() | os.environ,
        capture_output=capture,
        text=True,
        check=False,
    )


def uv_settings() -> dict[str, str]:
    """uv's variables that say what pip's files and variables say."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = {"UV_SYSTEM_CERTS": "true"}
    for ours, theirs in (("UV_FIND_LINKS", "find-links"), ("UV_DEFAULT_INDEX", "index-url")):
        found = dict(re.findall(rf"^(\S*)\.{theirs}='(.*)'$", listed, re.MULTILINE))
        # Variables win over files, as for pip.
        if value := found.get(":env:") or next(iter(found.values()), ""):
            settings[ours] = value.replace(" ", ",")
    return settings


if __name__ == "__main__":
    main()
