"""`make` installs torch's CPU build on machines without a GPU, and rejects any other build."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from support.dockerfiles import ROOT

SCRIPT = ROOT / "deploy" / "install_torch.py"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip and uv, without torch."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=True, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "lib" / version / "site-packages"
    uv = metadata.distribution("uv")
    shutil.copytree(str(uv.locate_file("uv")), packages / "uv")
    (directory / "bin" / "uv").symlink_to(Path(sysconfig.get_path("scripts")) / "uv")
    return directory


def make_wheel(folder: Path, name: str, version: str, *requirements: str) -> None:
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name.replace('_', '-')}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def install(environment: Path, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as `make` does, with wheels from one folder and no network."""
    constraint = folder / "constraints.txt"
    constraint.write_text("torch==2.13.0\n")
    # Without nvidia-smi on the PATH there is no GPU.
    environ = os.environ | {
        "PATH": "/bin",
        "PIP_FIND_LINKS": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "UV_CACHE_DIR": str(folder / "cache"),
        "UV_OFFLINE": "1",
    }
    environ.pop("PYTHONPATH", None)
    python = environment / "bin" / "python"
    command: list[str | Path] = [python, SCRIPT, "--constraint", constraint, *flags]
    return subprocess.run(
        command,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def versions(environment: Path) -> str:
    uv, python = environment / "bin" / "uv", environment / "bin" / "python"
    command: list[str | Path] = [uv, "pip", "list", "--python", python]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_cpu_build_is_installed_once(environment: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, "torch", "2.13.0+cpu")
    first = install(environment, tmp_path)
    assert first.returncode == 0, first.stderr
    assert "Installing torch for CPUs: about 190 MB" in first.stdout
    assert "2.13.0+cpu" in versions(environment)
    assert list(environment.glob("lib/*/site-packages/torch/__pycache__/__init__.*.pyc"))
    assert install(environment, tmp_path).stdout == "torch 2.13.0+cpu (cpu) is installed\n"


def test_a_build_with_cuda_is_not_taken_for_cpus(environment: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, "torch", "2.13.0", "nvidia-nothing")
    make_wheel(tmp_path, "nvidia_nothing", "1.0")
    subprocess.run(
        [environment / "bin" / "python", "-m", "pip", "uninstall", "-qy", "torch"], check=True
    )
    refused = install(environment, tmp_path, "--backend", "cpu")
    assert refused.returncode == 1
    assert "no CPU build of torch could be found for Python 3." in refused.stderr
    assert "TORCH=cuda" in refused.stderr
    assert "torch" not in versions(environment)

    asked_for = install(environment, tmp_path, "--backend", "cuda")
    assert asked_for.returncode == 0, asked_for.stderr
    assert "several GB" in asked_for.stdout
    assert "nvidia-nothing" in versions(environment)


def test_a_cpu_build_is_not_taken_for_cuda(environment: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, "torch", "2.13.0+cpu")
    subprocess.run(
        [environment / "bin" / "python", "-m", "pip", "uninstall", "-qy", "torch"], check=True
    )
    refused = install(environment, tmp_path, "--backend", "cuda")
    assert refused.returncode == 1
    assert "torch with CUDA was asked for" in refused.stderr


def test_asking_for_the_other_build_replaces_it(environment: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, "torch", "2.13.0", "nvidia-nothing")
    make_wheel(tmp_path, "nvidia_nothing", "1.0")
    assert install(environment, tmp_path, "--backend", "cuda").returncode == 0
    make_wheel(tmp_path, "torch", "2.13.0+cpu")
    replaced = install(environment, tmp_path)
    assert replaced.returncode == 0, replaced.stderr
    assert "2.13.0+cpu" in versions(environment)
