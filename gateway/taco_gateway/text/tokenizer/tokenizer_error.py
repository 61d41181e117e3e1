"""Errors of a tokenizer, panics of the `tokenizers` library among them."""

from collections.abc import Iterator
from contextlib import contextmanager

from taco_proto.errors import InvalidParameterError


class TokenizerError(InvalidParameterError):
    """The tokenizer cannot encode or decode a text; the cause is the tokenizer, not the text."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The model's tokenizer fails on this text: {reason}", "prompt")


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turns a panic of the `tokenizers` library into a `TokenizerError`.

    A panic is a BaseException, which `except Exception` does not catch.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError("the tokenizers library panicked") from None
