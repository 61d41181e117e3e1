"""Environments that have only what a test installs into them."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

UV = Path(sysconfig.get_path("scripts")) / "uv"


def run(*command: str | Path, **variables: str) -> str:
    """What a command writes to stdout; its other output is the test's."""
    # uv uses this machine's certificate authorities, as pip does.
    environ = os.environ | {"UV_SYSTEM_CERTS": "true"} | variables
    result = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout


def torch_source() -> dict[str, str]:
    """Variables that tell uv where to find torch for CPUs: a folder in pip's configuration, or the
    source of the images.
    """
    folders = re.findall(r"find-links='(\S+)'", run(sys.executable, "-m", "pip", "config", "list"))
    return {"UV_FIND_LINKS": folders[0]} if folders else {"UV_TORCH_BACKEND": "cpu"}
