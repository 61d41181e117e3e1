"""What a tiktoken file does not contain: its pattern and its special tokens.

Published checkpoints have them in Python code (`tokenization_*.py`), which is never run. Here they
are data, by the class that tokenizer_config.json names or by the name of the file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taco_common.tokenizer_files.added_tokens import AddedToken, special_tokens
from taco_common.tokenizer_files.published_patterns import CL100K, KIMI, O200K, QWEN

_SpecialTokens = Callable[[int], dict[int, AddedToken]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BytePairRules:
    """How a family of checkpoints uses its tiktoken file.

    Attributes:
        pattern: cuts a text into words.
        special: special tokens by id, from the number of tokens of the file.
        composes: texts get Unicode's form NFC first.
        prefix: special tokens in front of a text.
        settings: defaults of tokenizer_config.json.
    """

    pattern: str
    special: _SpecialTokens = lambda _: {}
    composes: bool = False
    prefix: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def find_rules(file: Path, tokenizer_class: str | None) -> BytePairRules:
    """Raises ValueError: neither the class nor the file is known."""
    rules = _BY_CLASS.get(tokenizer_class or "") or _BY_FILE.get(file.name)
    if rules is None:
        known = ", ".join([*sorted(_BY_CLASS), *sorted(_BY_FILE)])
        raise ValueError(
            f"its pattern is unknown: tokenizer_class is {tokenizer_class!r}; known are {known}; "
            "convert it to a tokenizer.json"
        )
    return rules


def _in_order(*texts: str) -> _SpecialTokens:
    return lambda num_tokens: special_tokens(texts, num_tokens)


def _phi3_small(_: int) -> dict[int, AddedToken]:
    """The model pads cl100k_base, whose id 100256 is unused, to 100352 tokens."""
    named = {
        100257: "<|endoftext|>",
        100258: "<|fim_prefix|>",
        100259: "<|fim_middle|>",
        100260: "<|fim_suffix|>",
        100261: "<|system|>",
        100262: "<|user|>",
        100263: "<|assistant|>",
        100266: "<|end|>",
        100276: "<|endofprompt|>",
    }
    unused = [100264, 100265, 100256, *range(100267, 100276), *range(100277, 100352)]
    named |= {i: f"<|dummy_id_{number}|>" for number, i in enumerate(unused)}
    return {i: AddedToken(id=i, content=text) for i, text in named.items()}


def _kimi(num_tokens: int) -> dict[int, AddedToken]:
    """tokenizer_config.json names some of them."""
    ids = range(num_tokens, num_tokens + 258)
    return special_tokens([f"<|reserved_token_{i}|>" for i in ids], num_tokens)


def _llama3_texts() -> list[str]:
    head = ["<|begin_of_text|>", "<|end_of_text|>"]
    head += [f"<|reserved_special_token_{i}|>" for i in range(4)]
    head += ["<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>"]
    head += ["<|eot_id|>"]
    return head + [f"<|reserved_special_token_{i}|>" for i in range(5, 251)]


_END_OF_TEXT = {"eos_token": "<|endoftext|>"}
_QWEN = BytePairRules(
    pattern=QWEN,
    composes=True,
    special=_in_order(
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))
    ),
    settings=_END_OF_TEXT,
)
_PHI3_SMALL = BytePairRules(
    pattern=CL100K, special=_phi3_small, settings=_END_OF_TEXT | {"bos_token": "<|endoftext|>"}
)
_GLM4 = BytePairRules(
    pattern=CL100K,
    special=_in_order(
        *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>"),
        *("<|user|>", "<|assistant|>", "<|observation|>", "<|begin_of_image|>"),
        *("<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
    ),
    prefix=("[gMASK]", "<sop>"),
    settings=_END_OF_TEXT,
)
_LLAMA3 = BytePairRules(
    pattern=CL100K,
    special=_in_order(*_llama3_texts()),
    settings={
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>",
        "add_bos_token": True,
    },
)
_BY_CLASS = {
    "QWenTokenizer": _QWEN,
    "Phi3SmallTokenizer": _PHI3_SMALL,
    "ChatGLM4Tokenizer": _GLM4,
    "TikTokenTokenizer": BytePairRules(
        pattern=KIMI, special=_kimi, settings={"bos_token": "[BOS]", "eos_token": "[EOS]"}
    ),
}
_BY_FILE = {
    "qwen.tiktoken": _QWEN,
    "cl100k_base.tiktoken": BytePairRules(pattern=CL100K),
    "o200k_base.tiktoken": BytePairRules(pattern=O200K),
    # The original files of Llama 3, which have no tokenizer_config.json.
    "tokenizer.model": _LLAMA3,
}
