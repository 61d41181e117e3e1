"""Installs each image's packages in a clean environment: `make check-images`, which needs the
network.

Runs the commands of the Dockerfiles. Differences: an environment instead of an image, a cache of
downloads, and CPU builds of torch from this machine's configured source.
"""

import sys
from pathlib import Path

import pytest

from support.clean_environments import UV, run, torch_source
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


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are mounted at /mnt while images are built."""
    directory = tmp_path_factory.mktemp("mnt")
    (directory / "constraints.txt").symlink_to(ROOT / "constraints.txt")
    (directory / "uv").symlink_to(UV)
    run(directory / "uv", "build", "--quiet", "--wheel", "--out-dir", directory, ROOT)
    return directory


def install(path: Path, mounted: Path, directory: Path, *flags: str) -> Path:
    """Runs the Dockerfile's commands; returns their environment."""
    environment = directory / "environment"
    run(mounted / "uv", "venv", "--quiet", "--python", sys.executable, environment)
    source = {} if path.stem == GPU else torch_source()
    variables = source | {"VIRTUAL_ENV": str(environment)}
    for command in installs(read_dockerfile(path)):
        here = command.replace("/mnt/", f"{mounted}/").replace(" --system", "")
        here = here.replace(" --no-cache", "").replace(" --compile-bytecode", "")
        run("sh", "-c", " ".join([here, *flags]), **variables)
    return environment


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
