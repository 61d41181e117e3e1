"""Checks that a tokenizer exists, is not empty, and belongs to the model.

transformers builds an empty tokenizer from a directory with tokenizer_config.json alone. Every
prompt would then have no tokens, so such a directory is rejected.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from taco_common.json_file import JsonFileError, read_json_object
from taco_common.tokenizer_files.convert import mistral_file
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError

# A tokenizer needs one of these; merges and settings have no vocabulary.
VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model*",
    "vocab*",
    "*.tiktoken",
    "tiktoken.model",
    "tekken.json",
    "*.model.v[0-9]*",
    "spiece.model",
    "sentencepiece*.model",
)
# Tokenizers of transformers whose tokens are bytes or characters: tokenizer_config.json is enough.
_WITHOUT_VOCABULARY = ("ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer")
# Any vocabulary has a token, at least an unknown token, for a part of it.
_SAMPLE = "Hello, world! 0 a é 你好 привет"
# Fields of config.json that hold a text model.
_NESTED = ("text_config", "llm_config")
_ADVICE = "name one with --tokenizer, or serve token ids alone with --skip-tokenizer-init"


class _Encoder(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> Sequence[int]: ...


def check_tokenizer_files(config: ModelConfig) -> None:
    """Checks that a tokenizer directory holds a vocabulary, without reading it. A hub id passes.

    Raises:
        ConfigurationError: the directory holds no vocabulary.
    """
    directory = Path(config.tokenizer or config.model).expanduser()
    if config.skip_tokenizer_init or not directory.is_dir():
        return
    require_vocabulary(directory)
    if config.tokenizer_mode == "mistral":
        mistral_file(directory)


def require_vocabulary(directory: Path) -> None:
    """Raises ConfigurationError unless the tokenizer has its vocabulary, if it needs one."""
    found = {path for name in VOCABULARY_FILES for path in directory.glob(name)}
    if any(path.is_file() and path.stat().st_size for path in found):
        return
    settings = _object(directory / "tokenizer_config.json")
    if settings.get("tokenizer_class") not in _WITHOUT_VOCABULARY:
        # The directory that is made of a .gguf file is in a cache, which the user does not know.
        files = sorted(directory.glob("*.gguf"))
        place = files[0].name if files else directory
        raise ConfigurationError(f"there is no tokenizer in {place}: {_ADVICE}")


def check_tokenizer(tokenizer: _Encoder, directory: Path, vocab_size: int | None) -> None:
    """Checks that a loaded tokenizer produces tokens, all of them in the model's vocabulary.

    Args:
        vocab_size: of the model; None: unknown.

    Raises:
        ConfigurationError: the tokenizer is empty, or belongs to another model.
    """
    token_ids = tokenizer.encode(_SAMPLE, add_special_tokens=False)
    if not token_ids:
        raise ConfigurationError(
            f"the tokenizer in {directory} is empty: it produces no tokens; {_ADVICE}"
        )
    if vocab_size is not None and max(token_ids) >= vocab_size:
        raise ConfigurationError(
            f"the tokenizer in {directory} belongs to another model: it produces token "
            f"{max(token_ids)}, and the model has {vocab_size} tokens"
        )


def vocab_size_of(config: ModelConfig) -> int | None:
    """The size of the model's vocabulary, from its directory; None if it cannot be read."""
    directory, overrides = Path(config.model).expanduser(), config.hf_overrides or {}
    names = ["params.json"] if config.config_format == "mistral" else ["config.json", "params.json"]
    for fields in (overrides, *(_object(directory / name) for name in names)):
        for part in (fields, *map(fields.get, _NESTED)):
            if not isinstance(part, Mapping):
                continue
            if isinstance(size := part.get("vocab_size"), int):
                return size
    return None


def _object(file: Path) -> Mapping[str, Any]:
    """The JSON object in a file; empty if it does not exist or cannot be read."""
    try:
        return read_json_object(file)
    except (FileNotFoundError, JsonFileError):
        return {}
