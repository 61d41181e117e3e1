"""Regular expressions of published tokenizers, which cut a text into words before merges.

No input is known for which they need more than linear time.
"""

_WORD_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NOT_HAN = r"&&[^\p{Han}]]"
_UPPER_NOT_HAN, _LOWER_NOT_HAN = _UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?"

# GPT-2, OPT, BLOOM, Falcon
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# cl100k_base, Llama 3, GLM-4, Phi-3-small
CL100K = rf"{_WORD_ENDINGS}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
# Qwen 1 to 3
QWEN = rf"{_WORD_ENDINGS}|{_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
# Mistral
TEKKEN = (
    rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
# GPT-4o
O200K = (
    rf"{_WORD}{_UPPER}*{_LOWER}+{_WORD_ENDINGS}?|{_WORD}{_UPPER}+{_LOWER}*{_WORD_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
# Kimi K2: words of Chinese characters, else like GPT-4o
KIMI = (
    rf"[\p{{Han}}]+|{_WORD}{_UPPER_NOT_HAN}*{_LOWER_NOT_HAN}+{_WORD_ENDINGS}?"
    rf"|{_WORD}{_UPPER_NOT_HAN}+{_LOWER_NOT_HAN}*{_WORD_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
# DeepSeek V3
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_THREE_DIGITS = "[0-9][0-9][0-9]"

# Of converted SentencePiece models: see `sentencepiece`.
MARK = "\U0010ffff"  # a noncharacter
UNMARKED_START, MARK_AT_START = r"\A(?!\x{10FFFF})", r"\A\x{10FFFF}"
SPACE_AT_START, SPACE_AT_END = r"\A ", r" \z"

PUBLISHED_PATTERNS = frozenset(
    {GPT2, CL100K, QWEN, TEKKEN, O200K, KIMI, DEEPSEEK, _THREE_DIGITS}
    | {UNMARKED_START, MARK_AT_START, SPACE_AT_START, SPACE_AT_END}
)
