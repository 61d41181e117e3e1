"""How byte-level vocabularies of GGUF files cut a text into words, by `tokenizer.ggml.pre`.

The steps are those of the tokenizer.json that a file was made of. Source: the patterns of
`llm_tokenizer_bpe` in llama.cpp (`llama-vocab.cpp`), and published tokenizers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from taco_common.tokenizer_files.published_patterns import (
    ALL_DIGITS,
    ASCII_PUNCTUATION,
    ASIAN_WORDS,
    BLOOM,
    CASED_WORDS,
    CHINESE_OR_JAPANESE,
    CHINESE_OR_KOREAN,
    CL100K,
    DEEPSEEK,
    END_OF_LINE,
    KIMI,
    LETTERS,
    LINE_BREAK,
    MINICPM,
    NUMBER_GROUPS,
    NUMBER_GROUPS_OF_WORDS,
    O200K,
    PUNCTUATION,
    QWEN,
    QWEN35,
    SEED_CODER,
    TEKKEN,
    THREE_DIGITS,
    UP_TO_THREE_DIGITS,
    YOUTU,
)

_Step = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text becomes the words that merges run in.

    Attributes:
        steps: of `pre_tokenizer` in tokenizer.json.
        ignore_merges: a word that is a token is that token.
        composes: a text gets Unicode's form NFC first.
        adds_bos: what files without `add_bos_token` mean.
    """

    steps: tuple[_Step, ...]
    ignore_merges: bool = False
    composes: bool = False
    adds_bos: bool = False


def _byte_level(*, splits: bool) -> _Step:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": splits,
    }


def _split(pattern: str) -> _Step:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _digits(*, one_by_one: bool) -> _Step:
    return {"type": "Digits", "individual_digits": one_by_one}


def _by_patterns(*patterns: str) -> PreTokenizer:
    return PreTokenizer((*map(_split, patterns), _byte_level(splits=False)))


_GPT2 = PreTokenizer((_byte_level(splits=True),))
_CL100K, _QWEN = _by_patterns(CL100K), _by_patterns(QWEN)
_LLAMA3 = replace(_CL100K, ignore_merges=True, adds_bos=True)
_DIGITS = PreTokenizer((_digits(one_by_one=True), _byte_level(splits=True)))
_FALCON = PreTokenizer(
    (
        {"type": "Punctuation", "behavior": "Contiguous"},
        _byte_level(splits=True),
        _digits(one_by_one=False),
        _split(THREE_DIGITS),
    )
)
_DEEPSEEK_LLM = PreTokenizer(
    (
        *map(_split, (LINE_BREAK, CASED_WORDS, ASCII_PUNCTUATION, END_OF_LINE, CHINESE_OR_KOREAN)),
        _digits(one_by_one=True),
        _byte_level(splits=False),
    )
)
_VIKING = PreTokenizer((_split(BLOOM), _digits(one_by_one=True), _byte_level(splits=False)))
_DEEPSEEK_CODER = PreTokenizer(
    (
        *map(_split, (LINE_BREAK, LETTERS, PUNCTUATION, CHINESE_OR_KOREAN)),
        _digits(one_by_one=True),
        _byte_level(splits=False),
    )
)


def _named(pre_tokenizer: PreTokenizer, *names: str) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names, pre_tokenizer)


_BY_NAME = {
    **_named(_FALCON, "default", "falcon"),
    **_named(_LLAMA3, "llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"),
    **_named(_LLAMA3, "falcon-h1", "lfm2"),
    **_named(_CL100K, "dbrx", "smaug-bpe", "chatglm-bpe"),
    **_named(replace(_CL100K, ignore_merges=True), "glm4"),
    **_named(replace(_QWEN, composes=True), "qwen2"),
    **_named(replace(_by_patterns(QWEN35), composes=True), "qwen35"),
    **_named(_QWEN, "deepseek-r1-qwen", "stablelm2", "megrez", "kormo", "solar-open"),
    **_named(_QWEN, "hunyuan", "bailingmoe", "bailingmoe2"),
    **_named(_by_patterns(SEED_CODER), "seed-coder"),
    **_named(replace(_by_patterns(UP_TO_THREE_DIGITS, MINICPM), ignore_merges=True), "minicpm5"),
    **_named(replace(_by_patterns(TEKKEN), ignore_merges=True, adds_bos=True), "tekken"),
    **_named(_by_patterns(O200K), "gpt-4o", "llama4", "kanana2", "minimax-m2"),
    **_named(_by_patterns(NUMBER_GROUPS_OF_WORDS, O200K), "tiny_aya", "cohere2moe"),
    **_named(_by_patterns(ALL_DIGITS, NUMBER_GROUPS), "superbpe"),
    **_named(replace(_by_patterns(KIMI), ignore_merges=True), "kimi-k2"),
    **_named(replace(_by_patterns(ASIAN_WORDS, YOUTU), ignore_merges=True), "youtu"),
    **_named(_GPT2, "exaone4", "jais"),
    **_named(
        _GPT2, "gpt-2", "phi-2", "mellum", "a.x-4.0", "trillion", "granite-docling", "gigachat"
    ),
    **_named(replace(_GPT2, composes=True), "olmo", "mpt"),
    **_named(_DIGITS, "starcoder", "refact", "smollm", "codeshell", "minerva-7b", "exaone"),
    **_named(replace(_DIGITS, composes=True), "command-r"),
    **_named(_by_patterns(BLOOM), "bloom", "poro-chat", "gpt3-finnish"),
    **_named(_VIKING, "viking"),
    **_named(_DEEPSEEK_LLM, "deepseek-llm"),
    **_named(_DEEPSEEK_CODER, "deepseek-coder"),
    **_named(
        _by_patterns(UP_TO_THREE_DIGITS, CHINESE_OR_JAPANESE, DEEPSEEK),
        "deepseek-v3",
        "hunyuan-dense",
        "joyai-llm",
    ),
}
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(_BY_NAME)


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """Raises ValueError for an unknown name."""
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ValueError(f"the pre-tokenizer {name!r:.100} is not supported; known: {known}")
    return PRE_TOKENIZERS[name]
