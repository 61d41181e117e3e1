"""Prompts for fill-in-the-middle: the model writes the text between a prefix and a suffix.

Models of code are trained on files with a hole (Bavarian et al., 2022, "Efficient Training of
Language Models to Fill in the Middle"). Marker tokens of the vocabulary say which part is which, so
the family of a model is found from its vocabulary.
"""

import re
from dataclasses import dataclass

from taco_gateway.text.tokenizer.tokenizer import Tokenizer

# A character that no token continues. SentencePiece puts a space in front of a text; written behind
# this character, the text has none (Code Llama's and Mistral's own code do the same).
_GUARD = "☺"


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillMarkers:
    """The marker tokens of one family of models.

    Attributes:
        prefix, suffix: the tokens before either part.
        middle: the token after both parts, which the middle follows; None: the prefix comes last,
            and the middle continues it.
        ends: tokens that end the middle, besides these markers; a vocabulary may lack some.
        has_bare_suffix: the suffix has no SentencePiece space in front.
    """

    prefix: str
    suffix: str
    middle: str | None
    ends: tuple[str, ...] = ()
    has_bare_suffix: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the markers."""
        return tuple(filter(None, (self.prefix, self.suffix, self.middle)))


FAMILIES = (
    # StarCoder, StarCoder2, StableCode, Granite Code
    InfillMarkers(
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        ends=("<fim_pad>", "<file_sep>", "<repo_name>", "<filename>", "<reponame>"),
    ),
    # SantaCoder
    InfillMarkers(
        prefix="<fim-prefix>", suffix="<fim-suffix>", middle="<fim-middle>", ends=("<fim-pad>",)
    ),
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Granite 4
    InfillMarkers(
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        ends=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # DeepSeek-Coder
    InfillMarkers(prefix="<｜fim▁begin｜>", suffix="<｜fim▁hole｜>", middle="<｜fim▁end｜>"),
    # Code Llama
    InfillMarkers(
        prefix="▁<PRE>",
        suffix="▁<SUF>",
        middle="▁<MID>",
        ends=("▁<EOT>",),
        has_bare_suffix=True,
    ),
    # Codestral
    InfillMarkers(prefix="[PREFIX]", suffix="[SUFFIX]", middle=None, has_bare_suffix=True),
)
# Ends a file in several families. Chat models of these families end a turn with another token.
_END_OF_TEXT = "<|endoftext|>"


class InfillEncoder:
    """Tokenizes a prefix and a suffix. Its methods block: call them from a thread.

    Attributes:
        end_token_ids: the tokens that end a middle, besides the model's end-of-sequence tokens.
    """

    def __init__(self, tokenizer: Tokenizer, markers: InfillMarkers) -> None:
        known = tokenizer.added_tokens | tokenizer.special_tokens
        self._tokenizer = tokenizer
        self._has_bare_suffix = markers.has_bare_suffix
        self._prefix_id = known[markers.prefix]
        self._suffix_id = known[markers.suffix]
        self._middle_id = None if markers.middle is None else known[markers.middle]
        ends = (*markers.texts, *markers.ends, _END_OF_TEXT)
        self.end_token_ids = tuple(known[text] for text in ends if text in known)
        # `encode_parts` hides special tokens only. Other markers are cut after one character.
        visible = [text for text in markers.texts if text not in tokenizer.special_tokens]
        cuts = [f"(?<={re.escape(text[0])})(?={re.escape(text[1:])})" for text in visible]
        self._inside_marker = re.compile("|".join(cuts) or "(?!)")

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "InfillEncoder | None":
        """The encoder of the first family whose markers the vocabulary has; None: of no family."""
        known = tokenizer.added_tokens | tokenizer.special_tokens
        for markers in FAMILIES:
            if known.keys() >= set(markers.texts):
                return cls(tokenizer, markers)
        return None

    def min_num_tokens(self, prefix: str, suffix: str) -> int:
        """A lower bound on the number of tokens of a prompt, without encoding it."""
        return sum(map(self._tokenizer.min_num_tokens, (prefix, suffix)))

    def encode(self, prefix: str, suffix: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt. Markers and special tokens in the texts stay plain text.

        Args:
            add_special_tokens: put the tokenizer's BOS in front.
        """
        start = self._tokenizer.prefix_token_ids() if add_special_tokens else []
        before = [self._prefix_id, *self._plain(prefix)]
        tail = self._bare(suffix) if self._has_bare_suffix else self._plain(suffix)
        after = [self._suffix_id, *tail]
        if self._middle_id is None:
            return [*start, *after, *before]
        return [*start, *before, *after, self._middle_id]

    def _bare(self, text: str) -> list[int]:
        guard, guarded = self._plain(_GUARD), self._plain(_GUARD + text)
        is_cut = guarded[: len(guard)] == guard
        return guarded[len(guard) :] if is_cut else self._plain(text)

    def _plain(self, text: str) -> list[int]:
        pieces = self._inside_marker.split(text)
        return [i for piece in pieces if piece for i in self._tokenizer.encode_parts([piece])]
