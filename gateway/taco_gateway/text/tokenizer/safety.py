"""Decides whether the steps of an untrusted tokenizer.json may run in the gateway process.

A normalizer that replaces "a" by a thousand letters, three times, turns one letter into 10^9. A
regular expression with nested repetitions may take exponential time. Steps whose time and memory
are known to be proportional to the text run in this process; nearly all published models have only
those. Other steps run in a sandboxed process, which costs about 0.1 ms per call. The decoder must
be known to be safe, because it runs for each token that is streamed.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from taco_common.tokenizer_files.published_patterns import PUBLISHED_PATTERNS

# One class of characters, repeated or not: no backtracking.
_SIMPLE_PATTERN = re.compile(
    r"(?:\[[^\[\]\\]+\]|\\p\{\w+\}|\\[dsw]| )(?:\+|\{\d{1,2}(?:,\d{0,2})?\})?"
)

_NORMALIZERS = frozenset(
    ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt", "ByteLevel")
) | {"BertNormalizer"}
_PRE_TOKENIZERS = frozenset(
    ("ByteLevel", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Metaspace", "Punctuation")
) | {"Digits", "UnicodeScripts", "CharDelimiterSplit"}
_POST_PROCESSORS = frozenset(("ByteLevel", "BertProcessing", "RobertaProcessing"))
_DECODERS = frozenset(
    ("ByteLevel", "WordPiece", "Metaspace", "BPEDecoder", "CTC", "ByteFallback", "Fuse", "Strip")
)
_MODELS = frozenset(("BPE", "WordPiece", "WordLevel", "Unigram"))

_MAX_STEPS = 32
_MAX_GROWTH = 16.0  # output bytes per input byte
_MAX_ADDED_TOKENS = 64  # by post-processing, around a text
_MAX_INSERTED_CHARS = 64
_MAX_TOKEN_CHARS = 4096
_MAX_WORD_CHARS = 1000  # WordPiece is quadratic in them

_Step = dict[str, Any]


def encoding_risk(description: _Step) -> str | None:
    """Why encoding with this tokenizer.json may need disproportionate time or memory.

    Returns:
        The step that is not known to be safe; None: all steps are safe.
    """
    return (
        _risk(description, "normalizer", "normalizers", _is_safe_normalizer)
        or _risk(description, "pre_tokenizer", "pretokenizers", _is_safe_splitter)
        or _risk(description, "post_processor", "processors", _is_safe_post_processor)
        or _model_risk(description.get("model"))
    )


def decoding_risk(description: _Step) -> str | None:
    """Like `encoding_risk`, for decoding."""
    return _risk(description, "decoder", "decoders", _is_safe_decoder) or _token_risk(description)


def _risk(
    description: _Step, name: str, members: str, is_safe: Callable[[_Step], bool]
) -> str | None:
    steps = list(_steps(description.get(name), members))
    if len(steps) > _MAX_STEPS:
        return f"its {name} has {len(steps)} steps"
    for step in steps:
        if not isinstance(step, dict) or not is_safe(step):
            kind = step.get("type") if isinstance(step, dict) else step
            return (
                f"its {name} has a step {str(kind)[:50]!r} of a kind that is not known to be safe"
            )
    if math.prod(_growth(step) for step in steps) > _MAX_GROWTH:
        return f"its {name} makes texts more than {_MAX_GROWTH:.0f} times as long"
    return None


def _steps(step: Any, members: str) -> Iterator[Any]:
    """All steps of a component, including those of nested sequences."""
    if isinstance(step, dict) and step.get("type") == "Sequence":
        for member in step.get(members) or ():
            yield from _steps(member, members)
    elif step is not None:
        yield step


def _is_safe_normalizer(step: _Step) -> bool:
    match step:
        case {"type": "Replace", "pattern": pattern, "content": str(content)}:
            return _is_safe_pattern(pattern) and len(content) <= _MAX_INSERTED_CHARS
        case {"type": "Prepend", "prepend": str(text)}:
            return len(text) <= _MAX_INSERTED_CHARS
        case {"type": name}:
            return name in _NORMALIZERS
    return False


def _is_safe_splitter(step: _Step) -> bool:
    match step:
        case {"type": "Split", "pattern": pattern}:
            return _is_safe_pattern(pattern)
        case {"type": name}:
            return name in _PRE_TOKENIZERS
    return False


def _is_safe_post_processor(step: _Step) -> bool:
    match step:
        case {"type": "TemplateProcessing", "single": list(single), "pair": list(pair)}:
            special = step.get("special_tokens") or {}
            ids = [token.get("ids") or () for token in special.values()]
            longest = max([len(some) for some in ids], default=0)
            return max(len(single), len(pair)) * max(longest, 1) <= _MAX_ADDED_TOKENS
        case {"type": name}:
            return name in _POST_PROCESSORS
    return False


def _is_safe_decoder(step: _Step) -> bool:
    match step:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return bool(pattern) and len(content) <= _MAX_INSERTED_CHARS
        case {"type": name}:
            return name in _DECODERS
    return False


def _is_safe_pattern(pattern: Any) -> bool:
    match pattern:
        case {"String": str(text)}:
            return bool(text)
        case {"Regex": str(regex)}:
            return regex in PUBLISHED_PATTERNS or bool(_SIMPLE_PATTERN.fullmatch(regex))
    return False


def _growth(step: _Step) -> float:
    """The factor by which a step may lengthen a text, unless it is a small constant."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)}:
            return max(1.0, len(content.encode()) / len(text.encode()))
        case {"type": "Replace", "content": str(content)}:
            return max(1.0, float(len(content.encode())))
    return 1.0


def _model_risk(model: Any) -> str | None:
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if kind not in _MODELS:
        return f"its model is {str(kind)[:50]!r}, which is not known to be safe"
    longest = model.get("max_input_chars_per_word") or 0
    if isinstance(longest, int) and longest > _MAX_WORD_CHARS:
        return f"its words may have {longest} characters"
    return None


def _token_risk(description: _Step) -> str | None:
    model = description.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    tokens = vocab if isinstance(vocab, dict) else [entry[0] for entry in vocab or ()]
    added = [token.get("content") or "" for token in description.get("added_tokens") or ()]
    longest = max([*map(len, tokens), *map(len, added)], default=0)
    if longest > _MAX_TOKEN_CHARS:
        return f"a token has {longest} characters, and {_MAX_TOKEN_CHARS} are allowed"
    return None
