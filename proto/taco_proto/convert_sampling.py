"""Sampling parameters as messages: those of a request, and of joining sequences as columns."""

from collections.abc import Sequence
from itertools import chain, islice
from typing import TypeVar

from taco_proto import scheduler_pb2 as pb
from taco_proto.sampling_params import SamplingParams

NO_LOGPROBS = -1

T = TypeVar("T")


def sampling_to_pb(params: SamplingParams) -> pb.Sampling:
    assert params.seed is not None
    assert params.max_tokens is not None
    bias = params.logit_bias or {}
    return pb.Sampling(
        n=params.num_sequences,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed & (2**64 - 1),
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        no_repeat_ngram_size=params.no_repeat_ngram_size,
        logit_bias_token_ids=bias.keys(),
        logit_bias_values=bias.values(),
        allowed_token_ids=params.allowed_token_ids,
        num_bad_word_tokens=map(len, params.bad_words_token_ids or ()),
        bad_word_token_ids=chain.from_iterable(params.bad_words_token_ids or ()),
    )


def sampling_from_pb(message: pb.Sampling) -> SamplingParams:
    return SamplingParams(
        n=message.n,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=_signed(message.seed),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        no_repeat_ngram_size=message.no_repeat_ngram_size,
        logit_bias=dict(zip(message.logit_bias_token_ids, message.logit_bias_values, strict=True)),
        allowed_token_ids=tuple(message.allowed_token_ids) or None,
        bad_words_token_ids=_split(message.bad_word_token_ids, message.num_bad_word_tokens),
        detokenize=False,
    )


def sampling_columns_to_pb(rows: tuple[SamplingParams, ...]) -> pb.SamplingColumns:
    columns = pb.SamplingColumns()
    for p in rows:
        assert p.seed is not None
        assert p.stop_token_ids is not None
        assert p.logit_bias is not None
        assert p.bad_words_token_ids is not None
        columns.presence_penalty.append(p.presence_penalty)
        columns.frequency_penalty.append(p.frequency_penalty)
        columns.repetition_penalty.append(p.repetition_penalty)
        columns.temperature.append(p.temperature)
        columns.top_p.append(p.top_p)
        columns.top_k.append(p.top_k)
        columns.min_p.append(p.min_p)
        columns.seed.append(p.seed & (2**64 - 1))
        columns.ignore_eos.append(p.ignore_eos)
        columns.min_tokens.append(p.min_tokens)
        columns.logprobs.append(NO_LOGPROBS if p.logprobs is None else p.logprobs)
        columns.prompt_logprobs.append(
            NO_LOGPROBS if p.prompt_logprobs is None else p.prompt_logprobs
        )
        columns.no_repeat_ngram_size.append(p.no_repeat_ngram_size)
        columns.num_stop_token_ids.append(len(p.stop_token_ids))
        columns.stop_token_ids.extend(p.stop_token_ids)
        columns.num_logit_bias.append(len(p.logit_bias))
        columns.logit_bias_token_ids.extend(p.logit_bias.keys())
        columns.logit_bias_values.extend(p.logit_bias.values())
        columns.num_allowed_token_ids.append(len(p.allowed_token_ids or ()))
        columns.allowed_token_ids.extend(p.allowed_token_ids or ())
        columns.num_bad_words.append(len(p.bad_words_token_ids))
        columns.num_bad_word_tokens.extend(map(len, p.bad_words_token_ids))
        columns.bad_word_token_ids.extend(chain.from_iterable(p.bad_words_token_ids))
    return columns


def sampling_columns_from_pb(c: pb.SamplingColumns) -> tuple[SamplingParams, ...]:
    rows = []
    allowed = _split(c.allowed_token_ids, c.num_allowed_token_ids)
    bad_words = _split(c.bad_word_token_ids, c.num_bad_word_tokens)
    bad_words_of = _split(bad_words, c.num_bad_words)
    stop_start = bias_start = 0
    for i, seed in enumerate(c.seed):
        stop_end = stop_start + c.num_stop_token_ids[i]
        bias_end = bias_start + c.num_logit_bias[i]
        bias_ids = c.logit_bias_token_ids[bias_start:bias_end]
        bias_values = c.logit_bias_values[bias_start:bias_end]
        rows.append(
            SamplingParams(
                presence_penalty=c.presence_penalty[i],
                frequency_penalty=c.frequency_penalty[i],
                repetition_penalty=c.repetition_penalty[i],
                temperature=c.temperature[i],
                top_p=c.top_p[i],
                top_k=c.top_k[i],
                min_p=c.min_p[i],
                seed=_signed(seed),
                ignore_eos=c.ignore_eos[i],
                max_tokens=None,  # the scheduler counts them
                min_tokens=c.min_tokens[i],
                logprobs=None if c.logprobs[i] == NO_LOGPROBS else c.logprobs[i],
                prompt_logprobs=(
                    None if c.prompt_logprobs[i] == NO_LOGPROBS else c.prompt_logprobs[i]
                ),
                no_repeat_ngram_size=c.no_repeat_ngram_size[i],
                stop_token_ids=tuple(c.stop_token_ids[stop_start:stop_end]),
                logit_bias=dict(zip(bias_ids, bias_values, strict=True)),
                allowed_token_ids=allowed[i] or None,
                bad_words_token_ids=bad_words_of[i],
                detokenize=False,
            )
        )
        stop_start, bias_start = stop_end, bias_end
    return tuple(rows)


def _split(flat: Sequence[T], counts: Sequence[int]) -> tuple[tuple[T, ...], ...]:
    """The next `counts[i]` values of a flat column, for every i."""
    values = iter(flat)
    return tuple(tuple(islice(values, count)) for count in counts)


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
