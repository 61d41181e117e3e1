"""The checked-in stubs are what the .proto files generate today."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).resolve().parents[2] / "proto"
STUBS = sorted(path.name for path in (PROTO / "taco_proto").glob("*_pb2*.py*"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stubs")
    env = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([str(PROTO / "generate.sh"), str(out)], check=True, env=env)
    return out / "taco_proto"


def test_no_stub_is_missing_or_left_over(generated: Path) -> None:
    assert sorted(path.name for path in generated.iterdir()) == STUBS


@pytest.mark.parametrize("name", STUBS)
def test_stub_is_fresh(generated: Path, name: str) -> None:
    assert (generated / name).read_text() == (PROTO / "taco_proto" / name).read_text()
