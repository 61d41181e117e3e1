"""The prompt as `echo` returns it: its text, and the part of the text of each token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from taco_gateway.text.tokenizer.detokenizer import REPLACEMENT
from taco_gateway.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt's text, and optionally its tokens.

    Attributes:
        token_ids: empty where no log probabilities are returned, like `tokens` and `offsets`.
        tokens: the text that each token adds. A token with part of a character is `bytes:` and its
            bytes as `\\x..`.
        offsets: characters of `text` before each token.
    """

    text: str
    token_ids: Sequence[int] = ()
    tokens: Sequence[str] = ()
    offsets: Sequence[int] = ()


def echoed_text(tokenizer: Tokenizer, token_ids: Sequence[int], text: str | None) -> EchoedPrompt:
    """The text of a prompt alone.

    Args:
        text: as the client sent it; None: the prompt came as token ids or was truncated.
    """
    if text is None:
        text = tokenizer.decode(token_ids, skip_special_tokens=False)
    return EchoedPrompt(text)


def echoed_tokens(
    tokenizer: Tokenizer,
    spell: Callable[[int], str],
    token_ids: Sequence[int],
    text: str | None,
) -> EchoedPrompt:
    """The text of a prompt with its tokens, including the special tokens in the text.

    A token that the tokenizer adds (BOS) adds nothing to the client's text. Where the tokenizer
    changes the text (lower case, Unicode normalization), the result is the changed text, because
    only that can be divided into tokens.

    Args:
        spell: gives the text of a token in log probabilities.
        text: as the client sent it; None: the prompt came as token ids or was truncated.
    """
    pieces, rest = _pieces(tokenizer, token_ids)
    if text is not None and "".join(pieces) + rest != text:
        prefix = tokenizer.prefix_token_ids()
        if prefix and list(token_ids[: len(prefix)]) == prefix:
            behind, rest_behind = _pieces(tokenizer, token_ids[len(prefix) :])
            if "".join(behind) + rest_behind == text:
                pieces, rest = [""] * len(prefix) + behind, rest_behind
    ends = accumulate(map(len, pieces))
    placed = [
        _placed(piece, spell(token_id), end)
        for piece, token_id, end in zip(pieces, token_ids, ends, strict=True)
    ]
    return EchoedPrompt(
        text="".join(pieces) + rest,
        token_ids=token_ids,
        tokens=[token for token, _ in placed],
        offsets=[offset for _, offset in placed],
    )


def _placed(piece: str, spelling: str, end: int) -> tuple[str, int]:
    """A token's text and its offset, within the piece of text that ends at `end`."""
    start = end - len(piece)
    if spelling.startswith("bytes:"):
        return spelling, start
    # Replacement characters of an unfinished character of earlier tokens may precede it.
    if piece != spelling and piece.endswith(spelling) and piece.startswith(REPLACEMENT):
        return spelling, end - len(spelling)
    return piece, start


def _pieces(tokenizer: Tokenizer, token_ids: Sequence[int]) -> tuple[list[str], str]:
    """The text that each token completes, and the text of an unfinished character at the end."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    return [detokenizer.feed((token_id,)) for token_id in token_ids], detokenizer.flush()
