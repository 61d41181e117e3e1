"""Downloads a model in GGUF from the Hugging Face hub: the files of one quantization."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from taco_common.download_progress import progress_bars
from taco_common.progress import Progress
from taco_worker.models.download import explain_hub_error
from taco_worker.quant.gguf.checkpoint import SUFFIX, is_other_file, model_name

_MOST_NAMES = 20  # in an error


def download_gguf(
    repository: str, kind: str, revision: str | None, download_dir: Path | None
) -> Path:
    """Download the files whose names have `kind`, and return the first one.

    Args:
        kind: such as "Q4_K_M", in any case.

    Raises:
        ValueError: the repository does not exist or cannot be reached, or it has no file of this
            kind, or several models of it.
    """
    try:
        names = _gguf_names(repository, revision, download_dir)
        chosen = files_of_kind(repository, kind, names)
        with Progress(f"downloading {repository} ({kind})") as progress:
            directory = snapshot_download(
                repository,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=list(chosen),
                tqdm_class=progress_bars(progress),
            )
    except _WrongKindError:
        raise
    except Exception as error:  # the hub's HTTP library may raise any exception
        raise ValueError(explain_hub_error(error, repository, revision)) from None
    return Path(directory) / chosen[0]


class _WrongKindError(ValueError):
    """The repository has no file of a kind, or several models."""


def files_of_kind(repository: str, kind: str, names: Sequence[str]) -> list[str]:
    """The names of one model's files that have `kind`, in order.

    Raises:
        ValueError: no model has it, or several have; the message lists them.
    """
    pattern = re.compile(rf"(^|[-._/]){re.escape(kind)}([-._/]|$)", re.IGNORECASE)
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix == SUFFIX and not is_other_file(path.name):
            models.setdefault(str(path.with_name(model_name(path.name))), []).append(name)
    found = {model: files for model, files in models.items() if pattern.search(model)}
    if len(found) == 1:
        return next(iter(found.values()))
    listed = ", ".join(sorted(found or models)[:_MOST_NAMES]) or "no .gguf file"
    if found:
        raise _WrongKindError(f"{repository} has several models of {kind}: {listed}")
    raise _WrongKindError(f"{repository} has no model of {kind}; it has {listed}")


def _gguf_names(repository: str, revision: str | None, download_dir: Path | None) -> list[str]:
    """The files of the repository, or those that were downloaded if it cannot be reached."""
    try:
        info = HfApi().model_info(repository, revision=revision or "main")
        return [one.rfilename for one in info.siblings or ()]
    except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception:  # the hub's HTTP library may raise any exception
        directory = Path(
            snapshot_download(
                repository, revision=revision, cache_dir=download_dir, local_files_only=True
            )
        )
        return [str(file.relative_to(directory)) for file in directory.rglob(f"*{SUFFIX}")]
