"""A tokenizer that is missing, empty or of another model is rejected."""

import json
from pathlib import Path

import pytest

from support.checkpoint_tokenizer import save_tokenizer
from taco_gateway.text.tokenizer.checks import check_tokenizer_files
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"vocab_size": 384}')
    save_tokenizer(tmp_path)
    return tmp_path


def rewrite_vocabulary(directory: Path, vocab: dict[str, int]) -> None:
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"], content["model"]["merges"] = vocab, []
    content["added_tokens"] = []
    content["post_processor"] = None
    file.write_text(json.dumps(content))


def both_checks(directory: Path, **settings: object) -> None:
    config = ModelConfig(model=str(directory), **settings)  # type: ignore[arg-type]
    check_tokenizer_files(config)
    load_tokenizer(config)


def test_a_whole_tokenizer_passes(directory: Path) -> None:
    both_checks(directory)


@pytest.mark.parametrize("check", [check_tokenizer_files, load_tokenizer])
def test_settings_without_a_vocabulary(directory: Path, check: object) -> None:
    """As after an interrupted copy: transformers builds an empty tokenizer from it."""
    (directory / "tokenizer.json").unlink()
    assert (directory / "tokenizer_config.json").is_file()
    config = ModelConfig(model=str(directory))
    with pytest.raises(ConfigurationError, match=r"there is no tokenizer in .*--skip-tokenizer-"):
        check(config)  # type: ignore[operator]
    both_checks(directory, skip_tokenizer_init=True)
    (directory / "small-Q8_0.gguf").touch()  # as in the directory that is made of such a file
    with pytest.raises(ConfigurationError, match=r"no tokenizer in small-Q8_0\.gguf: name one"):
        check(config)  # type: ignore[operator]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"vocab": {}}}', "[" * 100_000])
def test_an_invalid_tokenizer_json(directory: Path, content: str) -> None:
    (directory / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigurationError) as refusal:
        load_tokenizer(ModelConfig(model=str(directory)))
    assert "tokenizer" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_empty_vocabulary(directory: Path) -> None:
    rewrite_vocabulary(directory, {})
    config = ModelConfig(model=str(directory))
    with pytest.raises(ConfigurationError, match="is empty: it produces no tokens"):
        load_tokenizer(config)


@pytest.mark.parametrize("config", ['{"vocab_size": 20}', '{"llm_config": {"vocab_size": 20}}'])
def test_the_tokenizer_of_another_model(directory: Path, config: str) -> None:
    (directory / "config.json").write_text(config)
    with pytest.raises(
        ConfigurationError, match=r"another model: it produces token .* has 20 tokens"
    ):
        load_tokenizer(ModelConfig(model=str(directory)))
    (directory / "config.json").write_text('{"vocab_size": "many"}')
    load_tokenizer(ModelConfig(model=str(directory)))
