"""Finds a model's tokenizer, on disk or on the hub, and loads it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tokenizers.processors import TemplateProcessing

from taco_gateway.text.tokenizer import FastTokenizer, SlowTokenizer, Tokenizer, TokenizerSettings
from taco_gateway.text.tokenizer_check import (
    VOCABULARY_FILES,
    check_tokenizer,
    require_vocabulary,
    vocab_size_of,
)
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZER_FILES = ("tokenizer*", "merges.txt", *VOCABULARY_FILES)
_OTHER_FILES = ("config.json", "special_tokens_map.json", "added_tokens.json", "chat_template*")
_NAMED_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


def load_tokenizer(config: ModelConfig) -> Tokenizer | None:
    """Loads the tokenizer that `config` names; None with `skip_tokenizer_init`. Blocks.

    transformers is imported only where there is no tokenizer.json, or for `tokenizer_mode="slow"`.

    Raises:
        ConfigurationError: there is no tokenizer, or it is empty, cannot be read, or is that of
            another model.
    """
    if config.skip_tokenizer_init:
        return None
    directory = _find_directory(config)
    require_vocabulary(directory)
    tokenizer = _load(directory, config.tokenizer_mode)
    check_tokenizer(tokenizer, directory, vocab_size_of(config.model))
    return tokenizer


def _load(directory: Path, mode: str) -> Tokenizer:
    try:
        settings = _read_json(directory / "tokenizer_config.json")
        for name, value in _read_json(directory / "special_tokens_map.json").items():
            settings.setdefault(name, value)
        own = TokenizerSettings(
            bos_token=_content(settings.get("bos_token")),
            eos_token=_content(settings.get("eos_token")),
            chat_template=_chat_template(directory, settings),
        )
        file = directory / "tokenizer.json"
        if mode != "slow" and file.is_file():
            return FastTokenizer(
                _complete(tokenizers.Tokenizer.from_file(str(file)), settings), own
            )
        return _load_with_transformers(directory, mode, own)
    except Exception as error:  # tokenizers raises bare Exception, transformers almost anything
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"cannot load the tokenizer in {directory}: {reason}") from None


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
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=config.download_dir,
                allow_patterns=[*_TOKENIZER_FILES, *_OTHER_FILES],
            )
        )
    except GatedRepoError:
        reason = "is gated on the hub: set HF_TOKEN to a token that has access"
    except (HFValidationError, RepositoryNotFoundError):
        reason = "is neither a directory nor a model on the hub"
    except RevisionNotFoundError:
        reason = f"has no revision {revision} on the hub"
    except Exception as error:  # whatever the hub's HTTP library raises
        reason = f"cannot be downloaded from the hub: {' '.join(str(error).split())[:300]}"
    raise ConfigurationError(f"tokenizer {name} {reason}")


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _content(token: Any) -> str | None:
    """The text of a token that a config gives as a string or as an AddedToken's fields."""
    return token.get("content") if isinstance(token, dict) else token


def _chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = _read_json(directory / "chat_template.json").get("chat_template")
    template = template or settings.get("chat_template")
    if isinstance(template, list):  # named templates; the others are for tools and retrieval
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _complete(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Adds what tokenizer_config.json knows and tokenizer.json may not: special tokens, BOS,
    EOS.
    """
    named = [_content(settings.get(name)) for name in _NAMED_SPECIAL_TOKENS]
    named += [_content(token) for token in settings.get("additional_special_tokens") or ()]
    special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    backend.add_special_tokens([token for token in named if token and token not in special])
    _obey_bos_eos_flags(backend, settings)
    return backend


def _obey_bos_eos_flags(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
    # Checkpoints whose tokenizer.json adds no BOS rely on these flags (DeepSeek). Where they are
    # absent, tokenizer.json is the truth.
    ids = {}
    for name in ("bos_token", "eos_token"):
        text = _content(settings.get(name))
        token_id = backend.token_to_id(text) if text else None
        if text is not None and token_id is not None:
            ids[name] = (text, token_id)
    added = backend.encode("", add_special_tokens=True).ids
    if not set(added) <= {token_id for _, token_id in ids.values()}:
        return
    wanted = {}
    for name, (_, token_id) in ids.items():
        flag = settings.get(f"add_{name}")
        wanted[name] = token_id in added if flag is None else bool(flag)
    if wanted == {name: token_id in added for name, (_, token_id) in ids.items()}:
        return
    front = f"{ids['bos_token'][0]} " if wanted.get("bos_token") else ""
    back = f" {ids['eos_token'][0]}" if wanted.get("eos_token") else ""
    backend.post_processor = TemplateProcessing(
        single=f"{front}$A{back}",
        pair=f"{front}$A{back} {front}$B{back}",
        special_tokens=list(ids.values()),
    )


def load_transformers_tokenizer(config: ModelConfig) -> "PreTrainedTokenizerBase":
    """The same tokenizer as an object of transformers, for programs that want its methods. Blocks.

    Raises:
        ConfigurationError: the model is served without a tokenizer, or transformers cannot load it.
    """
    if config.skip_tokenizer_init:
        raise ConfigurationError("there is no tokenizer with skip_tokenizer_init")
    directory = _find_directory(config)
    try:
        return _load_transformers(directory, config.tokenizer_mode)
    except Exception as error:  # transformers raises almost anything
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(f"cannot load the tokenizer in {directory}: {reason}") from None


def from_transformers(
    loaded: "PreTrainedTokenizerBase", settings: TokenizerSettings | None = None
) -> Tokenizer:
    """A `Tokenizer` over one of transformers.

    Args:
        settings: None: what `loaded` itself says.
    """
    if settings is None:
        template = loaded.chat_template
        settings = TokenizerSettings(
            bos_token=loaded.bos_token,
            eos_token=loaded.eos_token,
            chat_template=template if isinstance(template, str) else None,
        )
    if loaded.is_fast:
        return FastTokenizer(loaded.backend_tokenizer, settings)
    return SlowTokenizer(loaded, settings)


def _load_transformers(directory: Path, mode: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer  # drags torch in where it is installed

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
    )
    return from_transformers(loaded, settings)
