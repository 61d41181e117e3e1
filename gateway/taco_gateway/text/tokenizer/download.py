"""Downloads the tokenizer of a model from the Hugging Face hub."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from taco_common.download_progress import progress_bars
from taco_common.progress import Progress
from taco_gateway.text.tokenizer.checks import VOCABULARY_FILES
from taco_proto.errors import ConfigurationError

_TOKENIZER_FILES = ("tokenizer*", "merges.txt", *VOCABULARY_FILES)
_OTHER_FILES = (
    "config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates/*.jinja",
)


def download_tokenizer(name: str, revision: str | None, download_dir: str | None) -> Path:
    """Downloads the files of a hub id and returns their directory. Blocks.

    Raises:
        ConfigurationError: the model does not exist, is gated, or cannot be downloaded.
    """
    try:
        with Progress(f"downloading the tokenizer of {name}") as progress:
            directory = snapshot_download(
                name,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=[*_TOKENIZER_FILES, *_OTHER_FILES],
                tqdm_class=progress_bars(progress),
            )
        return Path(directory)
    except GatedRepoError:
        reason = "is gated on the hub: set HF_TOKEN to a token that has access"
    except (HFValidationError, RepositoryNotFoundError):
        reason = "is neither a directory nor a model on the hub"
    except RevisionNotFoundError:
        reason = f"has no revision {revision} on the hub"
    except Exception as error:  # the hub's HTTP library may raise any exception
        reason = f"cannot be downloaded from the hub: {' '.join(str(error).split())[:300]}"
    raise ConfigurationError(f"tokenizer {name} {reason}")
