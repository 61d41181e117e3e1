"""The tokens of a checkpoint as bytes, which masks are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded with the first grammar: workers without grammars need no library
    from llguidance import LLTokenizer

_FILE = "tokenizer.json"


class GrammarError(ValueError):
    """A grammar cannot be compiled. The message is for clients."""


def load_vocabulary(directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """Read the tokens of a checkpoint.

    Args:
        vocab_size: of the model's logits.
        eos_token_ids: tokens that are allowed where a text is complete.

    Raises:
        GrammarError: the checkpoint has no tokenizer.json, or its family is unknown.
    """
    from llguidance import LLTokenizer

    path = directory / _FILE
    if not path.is_file():
        raise GrammarError(
            f"structured output needs a {_FILE} in the model's folder, and this model has none"
        )
    known = [token_id for token_id in eos_token_ids if token_id < vocab_size]
    if not known:
        raise GrammarError(
            "structured output needs an end-of-sequence token, and this model has none"
        )
    try:
        return LLTokenizer(path.read_text(), n_vocab=None, eos_token=known)
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise GrammarError(f"structured output cannot use this model's {_FILE}: {first}") from error
