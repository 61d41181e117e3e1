"""The tokens of a checkpoint as bytes, which masks are computed from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taco_proto.config import ModelConfig

if TYPE_CHECKING:  # loaded with the first grammar: workers without grammars need no library
    from llguidance import LLTokenizer

_FILE = "tokenizer.json"
_CONVERTER = "taco_worker.grammars.vocabulary_process"
_MAX_SECONDS = 120.0


class GrammarError(ValueError):
    """A grammar cannot be compiled. The message is for clients."""


def tokenizer_directory(config: ModelConfig, model_directory: Path) -> Path:
    """The directory with the files of the tokenizer. May download them.

    Raises:
        GrammarError: they cannot be found.
    """
    if config.tokenizer is None:
        return model_directory
    directory = Path(config.tokenizer).expanduser()
    if directory.is_dir():
        return directory
    download_dir = None if config.download_dir is None else Path(config.download_dir)
    # Importing it takes 0.2 s; a model on disk does not need it.
    from taco_worker.models.download import download_tokenizer

    try:
        return download_tokenizer(config.tokenizer, config.tokenizer_revision, download_dir)
    except ValueError as error:
        raise GrammarError(f"structured output needs the tokenizer: {error}") from None


def load_vocabulary(
    directory: Path, vocab_size: int, eos_token_ids: Sequence[int], *, mode: str = "auto"
) -> LLTokenizer:
    """Read the tokens of a checkpoint. A SentencePiece or tiktoken file is converted first.

    Args:
        directory: with the files of the tokenizer.
        vocab_size: of the model's logits.
        eos_token_ids: tokens that are allowed where a text is complete.
        mode: the tokenizer mode; "mistral" reads only Mistral's own files.

    Raises:
        GrammarError: the checkpoint has no vocabulary that can be read, or its family is unknown.
    """
    from llguidance import LLTokenizer

    known = [token_id for token_id in eos_token_ids if token_id < vocab_size]
    if not known:
        raise GrammarError(
            "structured output needs an end-of-sequence token, and this model has none"
        )
    path = directory / _FILE
    try:
        is_read = mode != "mistral" and path.is_file()
        text = path.read_text(encoding="utf-8") if is_read else _converted(directory, mode)
        if not text.lstrip().startswith("{"):  # llguidance would take it for a file's path
            raise ValueError(f"{_FILE} is not a JSON object")
        return LLTokenizer(text, n_vocab=None, eos_token=known)
    except (GrammarError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library's panics, too
        first = str(error).partition("\n")[0]
        raise GrammarError(
            f"structured output cannot use this model's tokenizer: {first}"
        ) from error


def _converted(directory: Path, mode: str) -> str:
    """The text of a tokenizer.json.

    Raises:
        GrammarError: no file can be converted.
    """
    command = [sys.executable, "-P", "-m", _CONVERTER, str(directory), mode]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_MAX_SECONDS)
    except subprocess.TimeoutExpired:
        raise GrammarError("structured output: converting the tokenizer takes too long") from None
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        shown = reason[-1] if reason else "its conversion exceeded a limit"
        raise GrammarError(f"structured output cannot use this model's tokenizer: {shown}")
    return done.stdout.decode()
