"""Downloads models from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from taco_common.download_progress import progress_bars
from taco_common.progress import Progress
from taco_worker.models.config_reading import config_file
from taco_worker.models.mistral_format import PARAMS_FILE, WEIGHTS_PREFIX

_TOKENIZER_PATTERNS = ["*.json", "*.txt", "*.model", "*.model.v[0-9]*", "*.tiktoken"]
_CONFIG_PATTERNS = [*_TOKENIZER_PATTERNS, "*.jinja"]
_SAFETENSORS_PATTERNS = ["*.safetensors"]
_CONSOLIDATED_PATTERNS = [f"{WEIGHTS_PREFIX}*.safetensors"]
_ADAPTER_PATTERNS = ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"]
_STATE_DICT_PATTERNS = ["*.bin", "medusa_lm_head.pt"]
# Not downloaded: other layouts of the same weights (folders, consolidated files), training files.
_CONSOLIDATED = f"{WEIGHTS_PREFIX}*"
_IGNORED_PATTERNS = ["*/*", _CONSOLIDATED, "training_args.bin", "optimizer.bin"]


def download_model(
    model: str,
    revision: str | None,
    download_dir: Path | None,
    ignore_patterns: tuple[str, ...] = (),
    *,
    is_mistral: bool = False,
) -> Path:
    """Download a hub id and return its directory; raises as `resolve_model` does."""
    try:
        ignored = [*_IGNORED_PATTERNS, *ignore_patterns]
        weights = _CONSOLIDATED_PATTERNS if is_mistral else _SAFETENSORS_PATTERNS
        with_consolidated = [pattern for pattern in ignored if pattern != _CONSOLIDATED]
        excluded = with_consolidated if is_mistral else ignored
        directory = _download(model, _CONFIG_PATTERNS + weights, excluded, revision, download_dir)
        if not any(directory.glob("*.safetensors")):
            _download(model, _STATE_DICT_PATTERNS, ignored, revision, download_dir)
            if not any(directory.glob("*.bin")):
                consolidated = _CONSOLIDATED_PATTERNS
                _download(model, consolidated, with_consolidated, revision, download_dir)
    except Exception as error:
        # The hub's client passes on errors of its HTTP library: requests in some versions, httpx
        # in others.
        raise ValueError(explain_hub_error(error, model, revision)) from None
    if not config_file(directory).is_file():
        raise ValueError(f"{model} on the hub is not a model: it has no config.json")
    return directory


def download_tokenizer(name: str, revision: str | None, download_dir: Path | None) -> Path:
    """Download the tokenizer of a hub id and return its directory; raises as `resolve_model`
    does.
    """
    try:
        return _download(name, _TOKENIZER_PATTERNS, _IGNORED_PATTERNS, revision, download_dir)
    except Exception as error:
        raise ValueError(explain_hub_error(error, name, revision)) from None


def download_adapter(name: str, download_dir: Path | None) -> Path:
    """Download a LoRA adapter in PEFT's format; raises as `resolve_adapter` does."""
    try:
        return _download(name, _ADAPTER_PATTERNS, _IGNORED_PATTERNS, None, download_dir)
    except Exception as error:
        raise ValueError(explain_hub_error(error, name, None)) from None


def download_config(model: str, revision: str | None, download_dir: Path | None) -> Path:
    """Download config.json of a hub id, and generation_config.json if it exists, and return the
    directory; raises as `resolve_model` does.
    """
    try:
        wanted = ["config.json", "generation_config.json", PARAMS_FILE]
        return _download(model, wanted, _IGNORED_PATTERNS, revision, download_dir)
    except Exception as error:
        raise ValueError(explain_hub_error(error, model, revision)) from None


def explain_hub_error(error: Exception, model: str, revision: str | None) -> str:
    match error:
        case HFValidationError():
            return f"{model} is neither a directory nor a hub id"
        case GatedRepoError():
            return f"{model} is gated on the hub: set HF_TOKEN to a token that has access"
        case RepositoryNotFoundError():
            return f"{model} is neither a directory nor a model on the hub (or it is private)"
        case RevisionNotFoundError():
            return f"{model} has no revision {revision} on the hub"
        case LocalEntryNotFoundError():
            return (
                f"{model} is not a directory, and it cannot be downloaded: the Hugging Face hub "
                f"cannot be reached ({_one_line(error.__cause__ or error)})"
            )
        case _:
            return (
                f"{model} is not a directory, and it cannot be downloaded from the Hugging Face "
                f"hub: {_one_line(error)}"
            )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or repr(error)


def _download(
    model: str,
    patterns: list[str],
    ignored: list[str],
    revision: str | None,
    download_dir: Path | None,
) -> Path:
    with Progress(f"downloading {model}") as progress:
        directory = snapshot_download(
            model,
            revision=revision,
            cache_dir=download_dir,
            allow_patterns=patterns,
            ignore_patterns=ignored,
            tqdm_class=progress_bars(progress),
        )
    return Path(directory)
