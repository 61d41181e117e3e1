"""Loads a model's tokenizer from a directory or from the Hugging Face hub."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from taco_common.free_memory import return_free_memory
from taco_common.json_file import (
    MAX_TOKENIZER_BYTES,
    JsonFileError,
    parse_json_object,
    read_text_file,
)
from taco_common.tokenizer_files.convert import mistral_file, vocabulary_file
from taco_common.tokenizer_files.settings_files import (
    read_added_ids,
    read_optional_json,
    read_settings,
)
from taco_gateway.text.tokenizer.checks import (
    check_tokenizer,
    require_vocabulary,
    vocab_size_of,
)
from taco_gateway.text.tokenizer.converted import converted_tokenizer
from taco_gateway.text.tokenizer.safety import decoding_risk, encoding_risk
from taco_gateway.text.tokenizer.sandboxed import SandboxedTokenizer
from taco_gateway.text.tokenizer.settings import complete, content
from taco_gateway.text.tokenizer.tokenizer import (
    FastTokenizer,
    SlowTokenizer,
    Tokenizer,
    TokenizerSettings,
)
from taco_gateway.text.tokenizer.tokenizer_error import TokenizerError, panics_as_errors
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger("taco.gateway")


def load_tokenizer(config: ModelConfig) -> Tokenizer | None:
    """Loads the tokenizer that `config` names; None with `skip_tokenizer_init`. Blocks.

    A SentencePiece model, a tiktoken file or a tekken.json is converted to a tokenizer.json.
    transformers is imported only where there is none of these, or for `tokenizer_mode="slow"`.

    Raises:
        ConfigurationError: there is no tokenizer, or it is empty, cannot be read, or belongs to
            another model.
    """
    if config.skip_tokenizer_init:
        return None
    directory = _find_directory(config)
    require_vocabulary(directory)
    tokenizer = _load(directory, config.tokenizer_mode)
    return_free_memory()
    try:
        check_tokenizer(tokenizer, directory, vocab_size_of(config))
    except TokenizerError as error:
        tokenizer.close()
        raise ConfigurationError(f"cannot use the tokenizer in {directory}: {error}") from None
    return tokenizer


def _load(directory: Path, mode: str) -> Tokenizer:
    with _load_errors(directory), panics_as_errors():
        settings = read_settings(directory)
        described = _tokenizer_json(directory, mode, settings)
        if described is None:
            return _load_with_transformers(directory, mode, _own_settings(directory, settings))
        text, settings, file = described
        own = _own_settings(directory, settings)
        return _fast_tokenizer(text, parse_json_object(text, file), own, settings)


def _own_settings(directory: Path, settings: dict[str, Any]) -> TokenizerSettings:
    templates = _chat_templates(directory, settings)
    return TokenizerSettings(
        bos_token=content(settings.get("bos_token")),
        eos_token=content(settings.get("eos_token")),
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
        response_template=settings.get("response_template"),
    )


def _tokenizer_json(
    directory: Path, mode: str, settings: dict[str, Any]
) -> tuple[str, dict[str, Any], Path] | None:
    """The text of the tokenizer.json, which may be a converted file, and the completed settings.

    Returns:
        None: transformers must load the tokenizer. Otherwise also the file.

    Raises:
        ConfigurationError: the file cannot be converted, or the mode mistral has no file.
    """
    if mode == "slow":
        return None
    file = directory / "tokenizer.json"
    if mode != "mistral" and file.is_file():
        return read_text_file(file, MAX_TOKENIZER_BYTES), settings, file
    vocabulary = (mistral_file if mode == "mistral" else vocabulary_file)(directory)
    if vocabulary is None:
        return None
    ids = read_added_ids(directory)
    return *converted_tokenizer(vocabulary, settings, ids), vocabulary


@contextmanager
def _load_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except (ConfigurationError, JsonFileError) as error:
        raise ConfigurationError(str(error)) from None
    except Exception as error:  # tokenizers raises bare Exception, transformers almost anything
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"cannot load the tokenizer in {directory}: {reason}") from None


def _fast_tokenizer(
    text: str,
    description: dict[str, Any],
    settings: TokenizerSettings,
    raw_settings: dict[str, Any],
) -> FastTokenizer:
    """Creates the tokenizer of a tokenizer.json.

    It encodes in a sandboxed process unless its steps are known to be safe.

    Args:
        text, description: content of the file, raw and parsed.

    Raises:
        ConfigurationError: its decoder is not known to be safe.
    """
    if reason := decoding_risk(description):
        raise ConfigurationError(f"the tokenizer cannot be served: {reason}")
    reason = encoding_risk(description)
    if reason is None:
        return FastTokenizer(complete(tokenizers.Tokenizer.from_str(text), raw_settings), settings)
    logger.warning("the tokenizer encodes in sandboxed processes, which takes longer: %s", reason)
    left_out = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "truncation"))
    vocabulary = tokenizers.Tokenizer.from_str(json.dumps(description | left_out))
    return SandboxedTokenizer(complete(vocabulary, raw_settings), settings, text, raw_settings)


def _find_directory(config: ModelConfig) -> Path:
    name = config.tokenizer or config.model
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.startswith(("/", "./", "../", "~")) or path.exists():
        raise ConfigurationError(f"tokenizer {name} is not a directory")
    revision = config.tokenizer_revision
    if revision is None and config.tokenizer is None:
        revision = config.revision
    # Importing the client of the hub takes longer than everything else here.
    from taco_gateway.text.tokenizer.download import download_tokenizer

    return download_tokenizer(name, revision, config.download_dir)


def _chat_templates(directory: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The templates of a checkpoint by name, as `save_pretrained` names them."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        others = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        return {other.stem: read_text_file(other) for other in others} | {
            "default": read_text_file(file)
        }
    template = read_optional_json(directory / "chat_template.json").get("chat_template")
    template = template or settings.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return {} if template is None else {"default": template}


def load_transformers_tokenizer(config: ModelConfig) -> "PreTrainedTokenizerBase":
    """Loads the tokenizer as an object of transformers, for programs that use it. Blocks.

    Raises:
        ConfigurationError: the model is served without a tokenizer, or transformers cannot load it.
    """
    if config.skip_tokenizer_init:
        raise ConfigurationError("there is no tokenizer with skip_tokenizer_init")
    directory = _find_directory(config)
    mode = config.tokenizer_mode
    try:
        if mode != "mistral" and (directory / "tokenizer.json").is_file():
            return _load_transformers(directory, mode)
        settings = read_settings(directory)
        described = _tokenizer_json(directory, mode, settings)
        if described is None:
            return _load_transformers(directory, mode)
        return _as_transformers(described[0], _own_settings(directory, described[1]), described[1])
    except ConfigurationError:
        raise
    except Exception as error:  # transformers raises almost anything
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"cannot load the tokenizer in {directory}: {reason}") from None


def _as_transformers(
    text: str, own: TokenizerSettings, settings: dict[str, Any]
) -> "PreTrainedTokenizerBase":
    """An object of transformers around a converted tokenizer."""
    from transformers import PreTrainedTokenizerFast  # imports torch where it is installed

    return PreTrainedTokenizerFast(
        tokenizer_object=complete(tokenizers.Tokenizer.from_str(text), settings),
        bos_token=own.bos_token,
        eos_token=own.eos_token,
        chat_template=own.chat_template,
    )


def from_transformers(
    loaded: "PreTrainedTokenizerBase", settings: TokenizerSettings | None = None
) -> Tokenizer:
    """Wraps a tokenizer of transformers.

    Args:
        settings: None: those of `loaded`.
    """
    if settings is None:
        template = loaded.chat_template or {}
        templates = template if isinstance(template, dict) else {"default": template}
        settings = TokenizerSettings(
            bos_token=loaded.bos_token,
            eos_token=loaded.eos_token,
            chat_template=templates.get("default"),
            tool_template=templates.get("tool_use"),
            response_template=getattr(loaded, "response_template", None),
        )
    if loaded.is_fast:
        return FastTokenizer(loaded.backend_tokenizer, settings)
    return SlowTokenizer(loaded, settings)


def _load_transformers(directory: Path, mode: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer  # imports torch where it is installed

    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        directory, use_fast=mode != "slow"
    )
    return loaded


def _load_with_transformers(directory: Path, mode: str, settings: TokenizerSettings) -> Tokenizer:
    loaded = _load_transformers(directory, mode)
    settings = TokenizerSettings(
        bos_token=settings.bos_token or loaded.bos_token,
        eos_token=settings.eos_token or loaded.eos_token,
        chat_template=settings.chat_template,
        tool_template=settings.tool_template,
        response_template=settings.response_template,
    )
    if not loaded.is_fast:
        return SlowTokenizer(loaded, settings)
    text = loaded.backend_tokenizer.to_str()
    return _fast_tokenizer(text, json.loads(text), settings, {})
