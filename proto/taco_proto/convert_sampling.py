"""Converters of sampling parameters: one request's, and those of joining sequences as columns.

A scalar parameter is copied by name. Lists travel flat, beside the number of entries of each row.
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from taco_proto import scheduler_pb2 as pb
from taco_proto.logits_processors import extra_args_from_json, extra_args_to_json, names_of
from taco_proto.sampling_params import EarlyStopping, SamplingParams

# In columns, where a field cannot be absent: the request asked for no log probabilities.
NO_LOGPROBS = -1

_EARLY_STOPPING: dict[pb.EarlyStopping, EarlyStopping] = {
    pb.STOP_IF_WORSE: False,
    pb.STOP_IF_COMPLETE: True,
    pb.STOP_NEVER: "never",
}
_OPTIONAL = ("logprobs", "prompt_logprobs")
_SCALARS = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "ignore_eos",
    "min_tokens",
    "no_repeat_ngram_size",
)

T = TypeVar("T")


def sampling_to_pb(params: SamplingParams) -> pb.Sampling:
    """Raises InvalidParameterError: a logits processor is a function, which cannot travel."""
    assert params.max_tokens is not None
    bias = params.logit_bias or {}
    return pb.Sampling(
        **{name: getattr(params, name) for name in (*_SCALARS, *_OPTIONAL)},
        n=params.num_outputs,
        num_beams=params.num_sequences if params.use_beam_search else 0,
        length_penalty=params.length_penalty,
        early_stopping=_early_stopping_to_pb(params.early_stopping),
        seed=_unsigned(params.seed),
        stop_token_ids=params.stop_token_ids,
        max_tokens=params.max_tokens,
        logit_bias_token_ids=bias.keys(),
        logit_bias_values=bias.values(),
        allowed_token_ids=params.allowed_token_ids,
        num_bad_word_tokens=map(len, params.bad_words_token_ids or ()),
        bad_word_token_ids=chain.from_iterable(params.bad_words_token_ids or ()),
        logits_processors=names_of(params.logits_processors or ()),
        extra_args=extra_args_to_json(params.extra_args),
        logprob_token_ids=params.logprob_token_ids,
    )


def sampling_from_pb(message: pb.Sampling) -> SamplingParams:
    """Raises:
    InvalidParameterError: a parameter is out of range.
    ValueError: columns differ in length.
    """
    values: dict[str, Any] = {name: getattr(message, name) for name in _SCALARS}
    for name in _OPTIONAL:
        values[name] = getattr(message, name) if message.HasField(name) else None
    if message.num_beams:
        values["use_beam_search"], values["best_of"] = True, message.num_beams
        values["length_penalty"] = message.length_penalty
        values["early_stopping"] = _EARLY_STOPPING.get(message.early_stopping, False)
    return SamplingParams(
        **values,
        n=message.n,
        seed=_signed(message.seed),
        stop_token_ids=tuple(message.stop_token_ids),
        max_tokens=message.max_tokens,
        logit_bias=dict(zip(message.logit_bias_token_ids, message.logit_bias_values, strict=True)),
        allowed_token_ids=tuple(message.allowed_token_ids) or None,
        bad_words_token_ids=_split(message.bad_word_token_ids, message.num_bad_word_tokens),
        logits_processors=tuple(message.logits_processors),
        extra_args=extra_args_from_json(message.extra_args),
        logprob_token_ids=tuple(message.logprob_token_ids),
        detokenize=False,
    )


def sampling_columns_to_pb(rows: tuple[SamplingParams, ...]) -> pb.SamplingColumns:
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in _SCALARS}
    for name in _OPTIONAL:
        values = [getattr(row, name) for row in rows]
        columns[name] = [NO_LOGPROBS if value is None else value for value in values]
    bias = [row.logit_bias or {} for row in rows]
    stops = [row.stop_token_ids or () for row in rows]
    allowed = [row.allowed_token_ids or () for row in rows]
    bad_words = [row.bad_words_token_ids or () for row in rows]
    words = list(chain.from_iterable(bad_words))
    processors = [names_of(row.logits_processors or ()) for row in rows]
    arguments = [extra_args_to_json(row.extra_args) for row in rows]
    listed = [row.logprob_token_ids or () for row in rows]
    beams = [row.use_beam_search for row in rows]
    return pb.SamplingColumns(
        **columns,
        seed=[_unsigned(row.seed) for row in rows],
        use_beam_search=beams if any(beams) else (),
        num_stop_token_ids=map(len, stops),
        stop_token_ids=chain.from_iterable(stops),
        num_logit_bias=map(len, bias),
        logit_bias_token_ids=chain.from_iterable(bias),
        logit_bias_values=chain.from_iterable(entry.values() for entry in bias),
        num_allowed_token_ids=map(len, allowed),
        allowed_token_ids=chain.from_iterable(allowed),
        num_bad_words=map(len, bad_words),
        num_bad_word_tokens=map(len, words),
        bad_word_token_ids=chain.from_iterable(words),
        num_logits_processors=map(len, processors) if any(processors) else (),
        logits_processors=chain.from_iterable(processors),
        extra_args=arguments if any(arguments) else (),
        num_logprob_token_ids=map(len, listed) if any(listed) else (),
        logprob_token_ids=chain.from_iterable(listed),
    )


def sampling_columns_from_pb(columns: pb.SamplingColumns) -> tuple[SamplingParams, ...]:
    stops = _split(columns.stop_token_ids, columns.num_stop_token_ids)
    bias = zip(columns.logit_bias_token_ids, columns.logit_bias_values, strict=True)
    bias_rows = _split(tuple(bias), columns.num_logit_bias)
    allowed = _split(columns.allowed_token_ids, columns.num_allowed_token_ids)
    words = _split(columns.bad_word_token_ids, columns.num_bad_word_tokens)
    bad_words = _split(words, columns.num_bad_words)
    none = (0,) * len(columns.seed)
    processors = _split(columns.logits_processors, columns.num_logits_processors or none)
    listed = _split(columns.logprob_token_ids, columns.num_logprob_token_ids or none)
    arguments = columns.extra_args or ("",) * len(columns.seed)
    scalars = [(name, getattr(columns, name)) for name in _SCALARS]
    optional = [(name, getattr(columns, name)) for name in _OPTIONAL]
    rows = []
    for i, seed in enumerate(columns.seed):
        values: dict[str, Any] = {name: column[i] for name, column in scalars}
        for name, column in optional:
            values[name] = None if column[i] == NO_LOGPROBS else column[i]
        rows.append(
            SamplingParams(
                **values,
                use_beam_search=bool(columns.use_beam_search) and columns.use_beam_search[i],
                seed=_signed(seed),
                max_tokens=None,  # the scheduler counts them
                stop_token_ids=stops[i],
                logit_bias=dict(bias_rows[i]),
                allowed_token_ids=allowed[i] or None,
                bad_words_token_ids=bad_words[i],
                logits_processors=processors[i],
                extra_args=extra_args_from_json(arguments[i]),
                logprob_token_ids=listed[i],
                detokenize=False,
            )
        )
    return tuple(rows)


def _split(flat: Sequence[T], counts: Sequence[int]) -> tuple[tuple[T, ...], ...]:
    """The next `counts[i]` values of a flat column, for every i."""
    values = iter(flat)
    return tuple(tuple(islice(values, count)) for count in counts)


def _early_stopping_to_pb(value: EarlyStopping) -> pb.EarlyStopping:
    return next(number for number, meaning in _EARLY_STOPPING.items() if meaning == value)


def _unsigned(seed: int | None) -> int:
    assert seed is not None
    return seed & (2**64 - 1)


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
