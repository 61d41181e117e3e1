"""Files that would hang a worker or exhaust its memory end with a one-line error."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS
from taco_common.json_file import JsonFileError, read_json_object
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError
from taco_worker.models.config import load_hf_config
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def checkpoint(original: Path, tmp_path: Path) -> Path:
    for file in original.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def rewrite(checkpoint: Path, **fields: object) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def refusal(checkpoint: Path) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the caller looks at the message)
        load_hf_config(checkpoint)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 10**6},
        {"num_hidden_layers": 10**9},
        {"max_position_embeddings": 10**12},
        {"hidden_size": 2**40},
        {"vocab_size": 2**31},
        {"num_attention_heads": 10**18},
    ],
    ids=str,
)
def test_sizes_beyond_every_model(checkpoint: Path, fields: dict[str, int]) -> None:
    rewrite(checkpoint, **fields)
    ((name, value),) = fields.items()
    assert f"{name} is {value}, and at most" in refusal(checkpoint)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_parameters": None, "rope_theta": 0}, "rope_theta must be above 0, not 0"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_theta must be above 0, not -1"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta must be above 0, not nan"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta must be above 0, not inf"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be finite, not nan"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be 0 or above, not -1"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps must be a number, not 'x'"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 1e300, "rope_theta": 1.0}},
            "max_position_embeddings is",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": float("inf"), "rope_theta": 1.0}},
            "needs a positive 'factor'",
        ),
    ],
    ids=str,
)
def test_invalid_model_sizes(checkpoint: Path, fields: dict[str, object], message: str) -> None:
    rewrite(checkpoint, **fields)
    assert message in refusal(checkpoint)


def test_json_nested_200_000_deep(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    assert "nested too deeply" in refusal(checkpoint)


def test_a_number_of_a_million_digits(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"vocab_size": ' + "9" * 10**6 + "}")
    assert "not valid JSON" in refusal(checkpoint)


def test_a_key_twice(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"vocab_size": 1, "vocab_size": 2}')
    assert "'vocab_size' occurs twice" in refusal(checkpoint)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [make_pipe, link_to_zeros, make_directory])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_config_that_is_not_a_regular_file(
    checkpoint: Path, name: str, make: Callable[[Path], None]
) -> None:
    (checkpoint / name).unlink()
    make(checkpoint / name)
    message = refusal(checkpoint)
    assert f"cannot read {checkpoint / name}" in message
    assert "not a regular file" in message or "Is a directory" in message


@pytest.mark.parametrize("make", [make_pipe, link_to_zeros])
def test_weights_that_are_not_a_regular_file(
    checkpoint: Path, make: Callable[[Path], None]
) -> None:
    (checkpoint / "model.safetensors").unlink()
    make(checkpoint / "model.safetensors")
    with pytest.raises(ValueError, match="no weights in"):
        find_weight_files(CheckpointFiles(checkpoint))


def test_an_index_that_is_not_a_regular_file(checkpoint: Path) -> None:
    make_pipe(checkpoint / "model.safetensors.index.json")
    with pytest.raises(ValueError, match="not a regular file"):
        find_weight_files(CheckpointFiles(checkpoint))


def test_a_file_beyond_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # a sparse file
    with pytest.raises(JsonFileError, match="larger than 1000 bytes"):
        read_json_object(path, 1000)


def test_a_worker_ends_with_one_line(checkpoint: Path) -> None:
    rewrite(checkpoint, num_hidden_layers=10**9)
    command = [sys.executable, "-m", "taco_llm.cli.main", "worker", str(checkpoint)]
    ended = subprocess.run(
        [*command, "--scheduler", "127.0.0.1:1", "--device", "cpu", "--num-threads", "1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode in (1, 2)
    assert "num_hidden_layers is 1000000000, and at most 1024 is supported" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_preflight_check_reports_the_same_error(checkpoint: Path) -> None:
    from taco_worker.startup_checks import check_model

    rewrite(checkpoint, max_position_embeddings=10**12)
    with pytest.raises(ConfigurationError, match="max_position_embeddings is 1000000000000"):
        check_model(ModelConfig(model=str(checkpoint)))
