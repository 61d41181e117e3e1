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
# Qwen3.5: as QWEN, with marks in words
QWEN35 = (
    rf"{_WORD_ENDINGS}|{_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
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
# Numbers of DeepSeek V3, and its words of Chinese and Japanese characters
UP_TO_THREE_DIGITS, CHINESE_OR_JAPANESE = r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+"
# DeepSeek Coder
LETTERS, PUNCTUATION = r"\s?\p{L}+", r"\s?\p{P}+"
LINE_BREAK, CHINESE_OR_KOREAN = "[\r\n]", "[一-龥ࠀ-一가-\ud7ff]+"
# DeepSeek LLM and V2: letters that have two cases, punctuation of two widths, spaces at the end of
# a line. The last is published as `\s+$`, which needs the square of the length of a run of spaces.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
CASED_WORDS, ASCII_PUNCTUATION = rf"\s?[{_CASED}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"
END_OF_LINE = r"(?<!\s)\s++$"
# Seed Coder
SEED_CODER = rf"{_WORD_ENDINGS}|{_WORD}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
# MiniCPM 5, behind UP_TO_THREE_DIGITS
MINICPM = rf"{_WORD_ENDINGS}|{_WORD}\p{{L}}+|\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
# Youtu: writing systems, then like GPT-4o with digits one by one
ASIAN_WORDS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\u303f︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"
YOUTU = O200K.replace(r"\p{N}{1,3}", r"\p{N}")
# Digits in groups of three from the right: of SuperBPE, and of Tiny Aya. They look ahead to the end
# of a number from each of its digits, so they are not known to be safe.
ALL_DIGITS, NUMBER_GROUPS = r"\p{N}+", r"(?=(\d{3})+(?!\d))"
NUMBER_GROUPS_OF_WORDS = r"\d{1,3}(?=(?:\d{3})*\b)"
# Words of BLOOM
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
THREE_DIGITS = "[0-9][0-9][0-9]"

# Of converted SentencePiece models: see `sentencepiece`.
MARK = "\U0010ffff"  # a noncharacter
UNMARKED_START, MARK_AT_START = r"\A(?!\x{10FFFF})", r"\A\x{10FFFF}"
SPACE_AT_START, SPACE_AT_END = r"\A ", r" \z"

PUBLISHED_PATTERNS = frozenset(
    {GPT2, CL100K, QWEN, QWEN35, TEKKEN, O200K, KIMI, DEEPSEEK}
    | {THREE_DIGITS, UP_TO_THREE_DIGITS}
    | {CHINESE_OR_JAPANESE, LETTERS, PUNCTUATION, LINE_BREAK, CHINESE_OR_KOREAN, BLOOM}
    | {CASED_WORDS, ASCII_PUNCTUATION, END_OF_LINE, SEED_CODER, MINICPM, ASIAN_WORDS, YOUTU}
    | {UNMARKED_START, MARK_AT_START, SPACE_AT_START, SPACE_AT_END}
)
