"""Sampling parameters of a request: how tokens are chosen, and when a sequence ends."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, InitVar, dataclass, field, fields, replace
from typing import Any, Literal

from taco_proto.errors import InvalidParameterError
from taco_proto.logits_processors import LogitsProcessor, checked_processors, extra_args_to_json
from taco_proto.structured_outputs import GuidedDecodingParams, StructuredOutputsParams

FLOAT32_TINY = 2.0**-126  # workers compute in float32, where less may become zero
MAX_SEQUENCES = 128
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 8192
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_TOKENS = 2**31 - 2
MAX_SEED = 2**63 - 1
RANDOM_SEED = -1  # as in vLLM and llama.cpp
TO_THE_MODELS_LENGTH = -1  # as truncate_prompt_tokens
TRUNCATION_SIDES = ("left", "right")
MAX_TEMPERATURE = 1e6  # far beyond where all tokens are equally likely
MAX_ALLOWED_TOKEN_IDS = 2**16
ALL_TOKENS = -1  # as logprobs and prompt_logprobs
MAX_LOGPROBS = 2**24  # more tokens than any vocabulary has
MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
GREEDY_EPSILON = 1e-5
MAX_BEAM_WIDTH = 64
MAX_BEAM_STOP_TOKEN_IDS = 32
MAX_LENGTH_PENALTY = 10.0
# Tokens of all beams, with their log probabilities. The answer comes in one message.
MAX_BEAM_VALUES = 1_500_000

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request.

    Names and defaults are those of the OpenAI completions API and of vLLM, and so is the order of
    positional arguments. None is the default of every argument but `max_tokens`.

    Attributes:
        n: sequences to return.
        best_of: sequences to generate, of which the `n` with the highest mean log probability are
            returned. With beam search: the number of beams. None: as many as `n`.
        presence_penalty: subtracted once from the logit of every token generated so far.
        frequency_penalty: subtracted once an occurrence.
        repetition_penalty: divides positive and multiplies negative logits of every token in the
            prompt or the output (Keskar et al., 2019, CTRL).
        temperature: 0 is greedy; the upper limit is far above any useful value.
        top_p: smallest set of tokens whose probability reaches `top_p`; in (0, 1].
        top_k: the `top_k` most likely tokens; -1 or 0 is all of them.
        min_p: drops tokens below `min_p` times the highest probability.
        logits_processors: functions that change the logits before temperature, in order: of
            (output_token_ids, logits) or (prompt_token_ids, output_token_ids, logits). They run in
            the engine's own process (`LLM`). A name is a processor that the engine has loaded.
        use_beam_search: return the `n` best of the texts that beam search finds. A temperature
            other than 0 divides the logits; nothing is drawn at random.
        length_penalty: beam search divides a text's sum of log probabilities by its number of
            tokens to this power.
        early_stopping: when beam search ends. True: when there are as many complete texts as beams;
            False: when the best beam's score is below theirs; "never": when no beam can reach a
            better score.
        seed: makes a request's tokens repeatable, whatever runs beside it. None or -1: drawn at
            random.
        stop: strings that end a sequence; they are cut from the text.
        stop_token_ids: tokens that end a sequence.
        ignore_eos: continue after the model's end-of-sequence token.
        max_tokens: most tokens to generate. None: as many as the model's length allows.
        min_tokens: number of tokens before which no end-of-sequence or stop token is generated.
        logprobs: number of most likely tokens whose log probabilities are returned at every
            position, beside the chosen one; -1 is all tokens. They are taken before temperature,
            penalties and bias.
        prompt_logprobs: the same for every prompt position but the first.
        logprob_token_ids: tokens whose log probabilities are returned instead of those of the most
            likely ones.
        detokenize: give text, not only token ids.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: put spaces between special tokens in the text.
        include_stop_str_in_output: keep the stop string at the end of the text.
        truncate_prompt_tokens: keep only this number of tokens of the prompt; -1: as many as fit
            before `max_tokens`. None: reject a prompt that is too long.
        truncation_side: where tokens are removed: "left" keeps the end of the prompt, "right" its
            beginning.
        no_repeat_ngram_size: an n-gram of that size occurs at most once; 0 is off.
        logit_bias: added to the logits of the given token ids.
        allowed_token_ids: only these tokens are generated, an end-of-sequence token only if it is
            among them. None: all tokens.
        bad_words: texts that are not generated, with or without a space in front. Each is a
            sequence of tokens: its last token is banned wherever the output ends with the others.
        bad_words_token_ids: the same as sequences of token ids.
        structured_outputs: what the text must match, such as a JSON schema; also as a mapping of
            its fields. None: free text.
        extra_args: arguments of loaded logits processors, as a JSON object.
        guided_decoding: the older form of `structured_outputs`; both at once are an error.

    Raises:
        InvalidParameterError: a value has the wrong type or is out of range; `param` names it.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logits_processors: Sequence[LogitsProcessor | str] | None = field(default=None, hash=False)
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    bad_words_token_ids: Sequence[Sequence[int]] | None = None
    structured_outputs: StructuredOutputsParams | None = field(default=None, hash=False)
    extra_args: Mapping[str, Any] | None = field(default=None, hash=False)
    logprob_token_ids: Sequence[int] | None = None
    guided_decoding: InitVar[GuidedDecodingParams | None] = None
    truncation_side: str = "left"

    def __post_init__(
        self,
        guided_decoding: GuidedDecodingParams | None,
    ) -> None:
        if guided_decoding is not None:
            if self.structured_outputs is not None:
                raise InvalidParameterError(
                    "structured_outputs and guided_decoding exclude each other", "guided_decoding"
                )
            if not isinstance(guided_decoding, GuidedDecodingParams):
                raise _wrong_type("guided_decoding", "GuidedDecodingParams", guided_decoding)
            object.__setattr__(self, "structured_outputs", guided_decoding.constraint())
        elif self.structured_outputs is not None:
            object.__setattr__(self, "structured_outputs", _constraint(self.structured_outputs))
        for name, default in _DEFAULTS:
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        # Normal forms, so that everything downstream sees one type.
        object.__setattr__(self, "stop", _texts("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _items("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if self.allowed_token_ids is not None:
            allowed = _items("allowed_token_ids", self.allowed_token_ids)
            object.__setattr__(self, "allowed_token_ids", allowed)
        object.__setattr__(self, "bad_words", _texts("bad_words", self.bad_words))
        words = _items("bad_words_token_ids", self.bad_words_token_ids)
        words = tuple(_items("bad_words_token_ids", word) for word in words)
        object.__setattr__(self, "bad_words_token_ids", words)
        object.__setattr__(self, "logits_processors", checked_processors(self.logits_processors))
        extra_args_to_json(self.extra_args)
        listed = _items("logprob_token_ids", self.logprob_token_ids)
        object.__setattr__(self, "logprob_token_ids", listed)
        if self.logprob_token_ids and self.logprobs is None:
            object.__setattr__(self, "logprobs", 0)
        if self.top_k == 0:
            object.__setattr__(self, "top_k", -1)
        self._check_switches()
        self._check_counts()
        self._check_numbers()
        self._check_lists()
        self._check_bans()
        self._check_beams()

    @property
    def reads_history(self) -> bool:
        """Whether choosing the next token reads the tokens before it, those in cached blocks too.

        The scheduler sends a sequence's cached tokens to the worker only if this is so.
        """
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or self.no_repeat_ngram_size > 0
            or bool(self.bad_words_token_ids)
            or bool(self.logits_processors)
        )

    @property
    def num_sequences(self) -> int:
        """Sequences to run for this request; with beam search, the number of beams."""
        return self.best_of or self.n

    @property
    def num_outputs(self) -> int:
        """Sequences that the scheduler emits. Of beams, it emits the best ones."""
        return self.n if self.use_beam_search else self.num_sequences

    @property
    def has_seed(self) -> bool:
        """Whether the client chose the seed."""
        return self.seed not in (None, RANDOM_SEED)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON

    def with_updates(self, **changes: Any) -> "SamplingParams":
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)

    def _check_switches(self) -> None:
        for name in _SWITCHES:
            value = getattr(self, name)
            if value is not True and value is not False:
                raise _wrong_type(name, "true or false", value)

    def _check_counts(self) -> None:
        _check_int("n", self.n, 1, MAX_SEQUENCES)
        if self.best_of is not None:
            _check_int("best_of", self.best_of, 1, MAX_SEQUENCES)
            if self.best_of < self.n:
                raise InvalidParameterError(
                    f"best_of must be at least n, got best_of={self.best_of} and n={self.n}",
                    "best_of",
                )
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check_int("min_tokens", self.min_tokens, 0, MAX_TOKENS)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                f"min_tokens must not exceed max_tokens, got {self.min_tokens} > {self.max_tokens}",
                "min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), ALL_TOKENS, MAX_LOGPROBS)
        if self.logprob_token_ids:
            _check_token_ids("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
        if self.truncate_prompt_tokens not in (None, TO_THE_MODELS_LENGTH):
            _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, MAX_TOKENS)
        if self.truncation_side not in TRUNCATION_SIDES:
            raise InvalidParameterError(
                f"truncation_side must be left or right, got {self.truncation_side!r}",
                "truncation_side",
            )
        _check_int("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, 2**16)
        _check_int("top_k", self.top_k, -1, MAX_TOKENS)
        if self.seed is not None:
            _check_int("seed", self.seed, -MAX_SEED - 1, MAX_SEED)

    def _check_numbers(self) -> None:
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _check_float("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)

    def _check_lists(self) -> None:
        assert self.stop is not None
        assert self.stop_token_ids is not None
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidParameterError(f"stop takes at most {MAX_STOP_STRINGS} strings", "stop")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidParameterError("stop strings must be non-empty strings", "stop")
            if len(text) > MAX_STOP_STRING_CHARS:
                raise InvalidParameterError(
                    f"a stop string may have at most {MAX_STOP_STRING_CHARS} characters", "stop"
                )
        if self.stop and not self.detokenize:
            raise InvalidParameterError("stop strings need detokenize=True", "stop")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidParameterError(
                f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids", "stop_token_ids"
            )
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, MAX_TOKENS)
        if len(self.logit_bias or {}) > MAX_LOGIT_BIAS:
            raise InvalidParameterError(
                f"logit_bias takes at most {MAX_LOGIT_BIAS} ids", "logit_bias"
            )
        for token_id, bias in (self.logit_bias or {}).items():
            _check_int("logit_bias", token_id, 0, MAX_TOKENS)
            _check_float("logit_bias", bias, -100.0, 100.0)

    def _check_bans(self) -> None:
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise InvalidParameterError(
                    "allowed_token_ids must not be empty: no token could be generated",
                    "allowed_token_ids",
                )
            _check_token_ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        assert self.bad_words is not None
        assert self.bad_words_token_ids is not None
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidParameterError(
                f"bad_words takes at most {MAX_BAD_WORDS} texts, got {len(self.bad_words)}",
                "bad_words",
            )
        for text in self.bad_words:
            if not isinstance(text, str) or not text.strip(" "):
                raise InvalidParameterError("bad_words must be non-empty strings", "bad_words")
            if len(text) > MAX_BAD_WORD_CHARS:
                raise InvalidParameterError(
                    f"bad_words may have at most {MAX_BAD_WORD_CHARS} characters each", "bad_words"
                )
        if len(self.bad_words_token_ids) > 2 * MAX_BAD_WORDS:
            raise InvalidParameterError(
                f"bad_words_token_ids takes at most {2 * MAX_BAD_WORDS} sequences",
                "bad_words_token_ids",
            )
        for word in self.bad_words_token_ids:
            if not word:
                raise InvalidParameterError(
                    "bad_words_token_ids must not have empty sequences", "bad_words_token_ids"
                )
            _check_token_ids("bad_words_token_ids", word, 4 * MAX_BAD_WORD_CHARS)

    def _check_beams(self) -> None:
        if self.early_stopping not in (True, False, "never"):
            raise InvalidParameterError(
                f'early_stopping must be true, false or "never", got {self.early_stopping!r}',
                "early_stopping",
            )
        _check_float("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not self.use_beam_search:
            for name, default in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, name) != default:
                    raise InvalidParameterError(f"{name} needs use_beam_search=true", name)
            return
        for name, neutral in (("top_p", 1.0), ("top_k", -1), ("min_p", 0.0)):
            if getattr(self, name) != neutral:
                raise InvalidParameterError(
                    f"{name} must be {neutral:g} with use_beam_search, which draws no tokens: "
                    f"got {getattr(self, name):g}",
                    name,
                )
        if self.logprob_token_ids:
            raise InvalidParameterError(
                "logprob_token_ids cannot be combined with use_beam_search", "logprob_token_ids"
            )
        if self.structured_outputs is not None:
            raise InvalidParameterError(
                "use_beam_search cannot be combined with a constraint on the text",
                "use_beam_search",
            )
        _check_int("best_of" if self.best_of else "n", self.num_sequences, 1, MAX_BEAM_WIDTH)
        if len(self.stop_token_ids or ()) > MAX_BEAM_STOP_TOKEN_IDS:
            raise InvalidParameterError(
                f"stop_token_ids takes at most {MAX_BEAM_STOP_TOKEN_IDS} ids with use_beam_search",
                "stop_token_ids",
            )
        if self.max_tokens is None:
            return
        num_values = self.num_sequences * self.max_tokens * (1 + (self.logprobs or 0))
        if num_values > MAX_BEAM_VALUES:
            raise InvalidParameterError(
                f"beams times max_tokens times 1 + logprobs must be at most {MAX_BEAM_VALUES}, "
                f"got {num_values}: lower max_tokens",
                "max_tokens",
            )


SAMPLING_FIELDS = tuple(f.name for f in fields(SamplingParams))
# The defaults that None means. For max_tokens it means: as many as fit.
_DEFAULTS = tuple(
    (f.name, f.default)
    for f in fields(SamplingParams)
    if f.default not in (None, MISSING) and f.name != "max_tokens"
)
_SWITCHES = tuple(f.name for f in fields(SamplingParams) if f.type is bool)
# Checks run several times in a request. Tuples of types, the usual one first, are faster than
# unions and abstract types.
_LISTS = (tuple, list)
_MAPPINGS = (dict, Mapping)
_NUMBERS = (int, float)


def _wrong_type(name: str, expected: str, value: object) -> InvalidParameterError:
    return InvalidParameterError(f"{name} must be {expected}, got {value!r:.80}", name)


def _constraint(value: object) -> StructuredOutputsParams:
    if isinstance(value, StructuredOutputsParams):
        return value
    if isinstance(value, Mapping):
        return StructuredOutputsParams.from_fields(value)
    raise _wrong_type("structured_outputs", "StructuredOutputsParams", value)


def _items(name: str, value: object) -> tuple[Any, ...]:
    """The items of a list or of another iterable; None: no items."""
    if value is None:
        return ()
    if isinstance(value, _LISTS):
        return tuple(value)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong_type(name, "a list", value)
    return tuple(value)


def _texts(name: str, value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else _items(name, value)


def _biases(value: object) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, _MAPPINGS):
        raise _wrong_type("logit_bias", "a mapping of token ids to numbers", value)
    return dict(value)


def _check_token_ids(name: str, token_ids: Sequence[int], max_length: int) -> None:
    """Checks a list as a whole: it may have as many ids as a vocabulary."""
    if len(token_ids) > max_length:
        raise InvalidParameterError(
            f"{name} takes at most {max_length} ids, got {len(token_ids)}", name
        )
    if set(map(type, token_ids)) != {int}:
        raise InvalidParameterError(f"{name} must be integers", name)
    for token_id in (min(token_ids), max(token_ids)):
        _check_int(name, token_id, 0, MAX_TOKENS)


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidParameterError(f"{name} must be an integer, got {value!r}", name)
    if not low <= value <= high:
        raise InvalidParameterError(f"{name} must be between {low} and {high}, got {value}", name)


def _check_float(
    name: str, value: object, low: float, high: float, *, open_low: bool = False
) -> None:
    if not isinstance(value, _NUMBERS) or isinstance(value, bool):
        raise InvalidParameterError(f"{name} must be a number, got {value!r}", name)
    if math.isnan(value) or not low <= value <= high or (open_low and value - low < FLOAT32_TINY):
        bounds = f"{'(' if open_low else '['}{low:g}, {high:g}]"
        raise InvalidParameterError(f"{name} must be in {bounds}, got {value}", name)
