"""Parsed answers from token ids: any grouping of tokens, marker tokens, and log probabilities."""

import json
from collections.abc import Iterator
from functools import cache

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from support.response_samples import (
    ARGUMENTS,
    NAMES,
    REASONING_SAMPLES,
    SAMPLES,
    SCHEMAS,
    VALUES,
)
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_gateway.text.output.output_processor import OutputProcessor, TextUpdate
from taco_gateway.text.output.token_logprobs import CandidateReader
from taco_gateway.text.response.response_delta import whole_calls
from taco_gateway.text.response.response_formats import ResponseFormats
from taco_gateway.text.response.response_parser import ResponseParser
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer, Tokenizer, TokenizerSettings
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason
from taco_proto.sampling_params import SamplingParams

# In the checkpoints that use the formats, these are single tokens of the vocabulary.
MARKERS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"),
    *("<|python_tag|>", "<|tool_call|>", "<tool_calls>", "</tool_calls>", "[THINK]", "[/THINK]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    *("<|action_start|>", "<|plugin|>", "<|action_end|>", "<|python_start|>", "<|python_end|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<function_call>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", "<seed:tool_call>", "</seed:tool_call>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    *("<longcat_tool_call>", "</longcat_tool_call>", "<function_calls>", "</function_calls>"),
)
KINDS = ("text", "added", "special")  # how the vocabulary has the markers


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*ARGUMENTS, '{"name": "f", "arguments": '] * 4, trainer)
    if kind != "text":
        is_special = kind == "special"
        backend.add_tokens([AddedToken(text, special=is_special) for text in MARKERS])
    return FastTokenizer(backend, TokenizerSettings())


def updates(token_ids: list[int], groups: tuple[int, ...], finish: int) -> Iterator[SequenceUpdate]:
    """The tokens in groups of these sizes, again and again."""
    at = number = 0
    while at < len(token_ids):
        ids = token_ids[at : at + groups[number % len(groups)]]
        at, number = at + len(ids), number + 1
        count = len(ids)
        columns = LogprobColumns([1] * count, list(ids), [-0.5] * count, [1] * count)
        reason = finish if at >= len(token_ids) else FinishReason.RUNNING
        yield SequenceUpdate(0, ids, finish_reason=reason, logprobs=columns)


def processed(
    kind: str,
    sample: str,
    reasoning: str,
    text: str,
    groups: tuple[int, ...],
    *,
    finish: int = FinishReason.STOP,
    skips: bool = True,
    max_calls: int | None = None,
    stop: list[str] | None = None,
) -> TextUpdate:
    """The whole answer, from the parts that its stream has. Checks each part."""
    tokenizer = tokenizer_of(kind)
    formats = ResponseFormats(tokenizer, SAMPLES[sample].tools, reasoning)
    options = formats.options([], SCHEMAS, max_calls=max_calls, skip_special_tokens=skips)
    assert options is not None
    params = SamplingParams(logprobs=0, skip_special_tokens=skips, stop=stop)
    processor = OutputProcessor(
        0,
        [],
        params,
        tokenizer,
        CandidateReader(tokenizer),
        (),
        gives_logprobs=True,
        sums_logprobs=False,
        parser=ResponseParser(options),
    )
    whole = TextUpdate(0)
    stage = last_call = 0
    ids = tokenizer.encode(text, add_special_tokens=False)
    for update in updates(ids, groups, finish):
        part = processor.feed(update)
        assert part.parsed is not None
        for place, text_part in enumerate((part.parsed.reasoning, part.parsed.content)):
            assert not text_part or stage <= place, "an earlier part"
            stage = place if text_part else stage
        for call in part.parsed.calls:
            stage = 2
            assert call.name is not None or call.arguments, "an empty delta"
            assert (call.id is None) == (call.name is None)
            assert call.index == last_call - (call.name is None), "an earlier call"
            last_call += call.name is not None
        whole.extend(part)
        if processor.ended_early:
            break
    return whole


def parts(answer: TextUpdate) -> tuple[str, str, list[tuple[str | None, str]]]:
    assert answer.parsed is not None
    calls = [(call.name, call.arguments) for call in whole_calls(answer.parsed.calls)]
    return answer.parsed.reasoning, answer.parsed.content, calls


GROUPS = st.lists(st.integers(1, 16), min_size=1, max_size=12).map(tuple)


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    reasoning=st.sampled_from(list(REASONING_SAMPLES)),
    content=st.sampled_from(["", "Let me see. ü🦊\n"]),
    num_calls=st.integers(0, 2),
    skips=st.booleans(),
    groups=GROUPS,
)
@pytest.mark.parametrize("name", SAMPLES)
def test_any_grouping_of_tokens(
    name: str,
    kind: str,
    reasoning: str,
    content: str,
    num_calls: int,
    skips: bool,
    groups: tuple[int, ...],
) -> None:
    sample = SAMPLES[name]
    text = REASONING_SAMPLES[reasoning].text + content + sample.write(num_calls)
    answer = processed(kind, name, reasoning, text, groups, skips=skips)
    thought, said, calls = parts(answer)
    assert (thought.strip(), said.strip()) == ("hm <b", content.strip())
    assert [called for called, _ in calls] == list(NAMES[:num_calls])
    assert [json.loads(arguments) for _, arguments in calls] == list(VALUES[:num_calls])
    if sample.has_same_bytes:
        assert [arguments for _, arguments in calls] == list(ARGUMENTS[:num_calls])
    assert answer.finish_reason == ("tool_calls" if num_calls else "stop")
    ids = tokenizer_of(kind).encode(text, add_special_tokens=False)
    assert answer.token_ids == ids
    assert answer.logprobs is not None
    assert [entry.chosen.token_id for entry in answer.logprobs] == ids
    assert parts(processed(kind, name, reasoning, text, (len(text),), skips=skips)) == parts(answer)


@settings(max_examples=10, deadline=None)
@given(kind=st.sampled_from(KINDS), end=st.floats(0.01, 0.99), groups=GROUPS)
@pytest.mark.parametrize("name", SAMPLES)
def test_an_answer_that_is_cut(name: str, kind: str, end: float, groups: tuple[int, ...]) -> None:
    """A call that was cut has the beginning of its arguments, and the reason stays `length`."""
    text = REASONING_SAMPLES["qwen3"].text + "ok" + SAMPLES[name].write(2)
    text = text[: int(len(text) * end) + 1]
    answer = processed(kind, name, "qwen3", text, groups, finish=FinishReason.LENGTH)
    assert answer.finish_reason == "length"
    _, _, calls = parts(answer)
    for (called, arguments), expected, whole in zip(calls, NAMES, ARGUMENTS, strict=False):
        assert called == expected
        if SAMPLES[name].has_same_bytes:
            assert whole.startswith(arguments)
    one = processed(kind, name, "qwen3", text, (1,), finish=FinishReason.LENGTH)
    assert parts(one) == parts(answer)
    assert one.parsed is not None
    assert answer.parsed is not None
    assert one.parsed.num_reasoning_tokens == answer.parsed.num_reasoning_tokens


@pytest.mark.parametrize("name", SAMPLES)
def test_the_last_call_that_is_allowed_ends_the_answer(name: str) -> None:
    text = "ok" + SAMPLES[name].write(2)
    answers = [
        processed("special", name, "qwen3", text, groups, finish=FinishReason.LENGTH, max_calls=1)
        for groups in ((1,), (16,), (5, 2))
    ]
    for answer in answers:
        assert [called for called, _ in parts(answer)[2]] == ["f"]
        assert answer.finish_reason == "tool_calls"
        assert answer.token_ids == answers[0].token_ids
        assert answer.logprobs is not None
        assert len(answer.logprobs) == len(answer.token_ids)


MARKER_ARGUMENTS = json.dumps({"s": "".join(MARKERS), "t": '</function>\n"}]'}, ensure_ascii=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        *("hermes", "mistral", "llama3_json", "internlm", "granite", "jamba", "kimi_k2"),
        *("deepseek_v31", "minimax", "longcat", "granite-20b-fc", "phi4_mini_json", "xlam"),
    ],
)
def test_markers_in_arguments_are_arguments(name: str, kind: str) -> None:
    """As text, and as tokens of the vocabulary in a string."""
    text = SAMPLES[name].write(1).replace(ARGUMENTS[0], MARKER_ARGUMENTS)
    for groups in ((1,), (3,), (16,)):
        answer = processed(kind, name, "qwen3", text, groups, skips=False)
        assert parts(answer) == ("", "", [("f", MARKER_ARGUMENTS)])


def test_text_that_is_spelled_like_a_marker_token_is_text() -> None:
    tokenizer = tokenizer_of("special")
    spelled = tokenizer.encode_parts(["<tool_call>{}</tool_call>"])
    assert tokenizer.special_tokens["<tool_call>"] not in spelled
    formats = ResponseFormats(tokenizer, "hermes", None)
    options = formats.options([], SCHEMAS, max_calls=None, skip_special_tokens=True)
    assert options is not None
    processor = OutputProcessor(
        0,
        [],
        SamplingParams(),
        tokenizer,
        CandidateReader(tokenizer),
        (),
        gives_logprobs=False,
        sums_logprobs=False,
        parser=ResponseParser(options),
    )
    whole = TextUpdate(0)
    for update in updates(spelled, (2,), FinishReason.STOP):
        whole.extend(processor.feed(update))
    assert parts(whole) == ("", "<tool_call>{}</tool_call>", [])
    assert whole.finish_reason == "stop"


@settings(max_examples=20, deadline=None)
@given(groups=GROUPS)
def test_log_probabilities_with_a_stop_string(groups: tuple[int, ...]) -> None:
    """The stop string ends the answer inside the call; entries and tokens are the same."""
    text = "ok" + SAMPLES["hermes"].write(2)
    answer = processed("added", "hermes", "qwen3", text, groups, stop=["null"])
    _, content, calls = parts(answer)
    assert (content, calls) == ("ok", [("f", ARGUMENTS[0].partition("null")[0])])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "null")
    assert answer.logprobs is not None
    assert [entry.chosen.token_id for entry in answer.logprobs] == answer.token_ids
