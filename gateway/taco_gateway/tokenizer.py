"""Text to token ids and back."""

from collections.abc import Sequence

from taco_proto.config import ModelConfig


class Tokenizer:
    """A tokenizer and what the gateway must know of it. Safe to use from several threads.

    Attributes:
        bos_token, eos_token: their text; None where the model has none.
        special_token_ids: ids that `skip_special_tokens` leaves out.
        chat_template: the checkpoint's own Jinja source; None if it has none.
    """

    bos_token: str | None
    eos_token: str | None
    special_token_ids: frozenset[int]
    chat_template: str | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens that it spells count as such. Releases the GIL."""
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`; ids outside the vocabulary have none."""
        raise NotImplementedError


def load_tokenizer(config: ModelConfig) -> Tokenizer | None:
    """Loads the tokenizer that `config` names; None with `skip_tokenizer_init`. Blocks.

    Raises:
        ConfigurationError: there is none, or it cannot be read.
    """
    raise NotImplementedError
