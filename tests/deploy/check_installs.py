"""Installs each image's packages in a clean environment: `make check-images`, which needs the
network.

Runs the commands of the Dockerfiles. Differences: an environment instead of an image, a cache of
downloads, and CPU builds of torch from this machine's configured source.
"""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.compose import FOLDER
from support.dockerfiles import DOCKERFILES, ROOT, installs, read_dockerfile, words

WITHOUT_TORCH = {"gateway", "scheduler", "license-server"}
GPU = "worker"
IMPORTED = {
    "draft-worker": "taco_draft.server",
    "gateway": "taco_gateway.server",
    "license-server": "taco_license.server.server",
    "scheduler": "taco_scheduler.server.grpc_server",
    "worker-cpu": "taco_worker.server",
}


def run(*command: str | Path, **variables: str) -> str:
    # uv uses this machine's certificate authorities, as pip does.
    environ = os.environ | {"UV_SYSTEM_CERTS": "true"} | variables
    result = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are mounted at /mnt while images are built."""
    directory = tmp_path_factory.mktemp("mnt")
    (directory / "constraints.txt").symlink_to(ROOT / "constraints.txt")
    (directory / "uv").symlink_to(Path(sysconfig.get_path("scripts")) / "uv")
    run(directory / "uv", "build", "--quiet", "--wheel", "--out-dir", directory, ROOT)
    return directory


def install(path: Path, mounted: Path, directory: Path, *flags: str) -> Path:
    """Runs the Dockerfile's commands; returns their environment."""
    environment = directory / "environment"
    run(mounted / "uv", "venv", "--quiet", "--python", sys.executable, environment)
    variables = torch_source(path.stem) | {"VIRTUAL_ENV": str(environment)}
    for command in installs(read_dockerfile(path)):
        here = command.replace("/mnt/", f"{mounted}/").replace(" --system", "")
        here = here.replace(" --no-cache", "").replace(" --compile-bytecode", "")
        run("sh", "-c", " ".join([here, *flags]), **variables)
    return environment


def torch_source(service: str) -> dict[str, str]:
    """Variables that tell uv where to find torch: a folder in pip's configuration, or the
    image's source.
    """
    if service == GPU:
        return {}
    folders = re.findall(r"find-links='(\S+)'", run(sys.executable, "-m", "pip", "config", "list"))
    return {"UV_FIND_LINKS": folders[0]} if folders else {"UV_TORCH_BACKEND": "cpu"}


@pytest.mark.parametrize("service", IMPORTED)
def test_an_image_contains_the_packages_of_its_service(
    service: str, mounted: Path, tmp_path: Path
) -> None:
    [path] = [path for path in DOCKERFILES if path.stem == service]
    binaries = install(path, mounted, tmp_path) / "bin"
    script = f"""
import importlib.util, {IMPORTED[service]}
from taco_kernels.build import LIBRARY
assert LIBRARY.is_file()
assert {service in WITHOUT_TORCH} == (importlib.util.find_spec("torch") is None)
"""
    run(binaries / "python", "-c", script)
    run(binaries / "taco_llm", words(read_dockerfile(path), "CMD")[0], "--help")
    if service == "license-server":  # its image creates the files that compose mounts
        taco = str(binaries / "taco_llm")
        run(FOLDER / "prepare.sh", SECRETS=str(tmp_path / "secrets"), TACO=taco)


def test_gpu_image_requirements_resolve(mounted: Path, tmp_path: Path) -> None:
    # Only resolved, not downloaded: CUDA's wheels take gigabytes.
    [path] = [path for path in DOCKERFILES if path.stem == GPU]
    install(path, mounted, tmp_path, "--dry-run")
