"""Rules for the Dockerfiles, TACO's own and hadolint's."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

from support.dockerfiles import (
    DOCKERFILES,
    ROOT,
    Instruction,
    installs,
    last,
    read_dockerfile,
    words,
)
from taco_llm.cli.main import build_parser

# Each service's extra and ports.
SERVICES = {
    "draft-worker": ("draft", "9000"),
    "gateway": ("gateway", "8000 7200 9000"),
    "license-server": ("license", "10080"),
    "scheduler": ("scheduler", "7100 9000"),
    "worker": ("gpu", "9000"),
    "worker-cpu": ("worker", "9000"),
}

every_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)


def test_each_service_has_a_dockerfile() -> None:
    assert {path.stem for path in DOCKERFILES} == set(SERVICES)


def test_hadolint_passes() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    config = DOCKERFILES[0].with_name("hadolint.yaml")
    command: list[str | Path] = [hadolint, "--config", config, *DOCKERFILES]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@every_dockerfile
def test_an_image_installs_only_its_extra(path: Path) -> None:
    *before, own = installs(read_dockerfile(path))
    extra, _ = SERVICES[path.stem]
    assert own.endswith(f'"$(echo /mnt/*.whl)[{extra}]"')
    assert [command.split()[-1] for command in before] == (
        ["torch"] if extra in ("draft", "gpu", "worker") else []
    )
    for command in (*before, own):
        assert "--constraint /mnt/constraints.txt" in command
        assert "--no-cache" in command


@every_dockerfile
def test_an_image_runs_as_an_unprivileged_numeric_user(path: Path) -> None:
    instructions = read_dockerfile(path)
    assert last(instructions, "USER") == "10001:10001"
    after = instructions[[x.name for x in instructions].index("USER") :]
    assert [x for x in after if x.name == "RUN"] == []


@every_dockerfile
def test_the_command_of_an_image_is_valid(path: Path) -> None:
    instructions = read_dockerfile(path)
    assert words(instructions, "ENTRYPOINT") == ["taco_llm"]
    command = words(instructions, "CMD")
    given = vars(build_parser().parse_args(command))
    assert given.get("admin_port", 9000) == 9000
    assert last(instructions, "EXPOSE") == SERVICES[path.stem][1]


@every_dockerfile
def test_the_health_check_uses_a_port_of_the_service(path: Path) -> None:
    instructions = read_dockerfile(path)
    check = last(instructions, "HEALTHCHECK")
    ports = last(instructions, "EXPOSE").split()
    assert re.findall(r"127\.0\.0\.1'?[:,] ?(\d+)", check) == [ports[-1]]
    assert 'CMD ["python", "-c", ' in check
    assert ("/livez" in check) == (ports[-1] == "9000")


@every_dockerfile
def test_base_images_are_pinned_and_no_url_is_added(path: Path) -> None:
    instructions = read_dockerfile(path)
    assert instructions[0].name == "ARG"
    name, _, tag = instructions[0].text.removeprefix("PYTHON_IMAGE=").partition(":")
    assert (name, tag) == ("python", "3.11-slim-bookworm")
    bases = {x.text.partition(" AS ")[0] for x in instructions if x.name == "FROM"}
    assert bases == {"${PYTHON_IMAGE}", "installer"}
    assert [x for x in instructions if x.name == "ADD" or "http://deb" in x.text] == []


@every_dockerfile
def test_only_a_gpu_worker_has_a_compiler(path: Path) -> None:
    packages = [x for x in read_dockerfile(path) if not x.stage and "apt-get install" in x.text]
    assert len(packages) == (path.stem == "worker")  # Triton needs one


def test_the_wheel_is_built_once_for_all() -> None:
    stages = [_of_stages(read_dockerfile(path)) for path in DOCKERFILES]
    assert stages[0]
    assert all(stage == stages[0] for stage in stages)


def _of_stages(instructions: list[Instruction]) -> list[Instruction]:
    return [x for x in instructions if x.stage]


def test_the_build_context_is_the_source_of_the_wheel() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in lines if not line.startswith("#")) == "*"
    let_in = {line[1:].split("/")[0] for line in lines if line.startswith("!")}
    project = (ROOT / "pyproject.toml").read_text()
    [packages] = re.findall(r"^where = (\[.*\])$", project, re.MULTILINE)
    files = {"pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE.md"}
    assert let_in == {*yaml.safe_load(packages), *files}
