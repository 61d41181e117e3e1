"""TextEngine: stop strings, usage, best_of, log probabilities and rejected requests."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scripted_engine import (
    MODEL_INFO,
    Hold,
    ScriptedEngine,
    Step,
    prompt_of,
    replay,
)
from support.tiny_tokenizers import byte_level_bpe
from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_gateway.engine.request_table import RequestTable
from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.text.text_engine import TextEngine
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer, TokenizerSettings
from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import logprobs_to_pb
from taco_proto.errors import InvalidParameterError
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest
from taco_proto.sampling_params import SamplingParams

TOKENIZER = FastTokenizer(byte_level_bpe(), TokenizerSettings(chat_template="{{ messages }}"))
EOS = TOKENIZER.special_tokens["<|endoftext|>"]
INFO = replace(MODEL_INFO, eos_token_ids=(EOS,), vocab_size=TOKENIZER.vocab_size)
PROMPT = TOKENIZER.encode("The quick")


def engine_of(steps: Iterable[Step]) -> tuple[TextEngine, ScriptedEngine]:
    steps = list(steps)
    client = ScriptedEngine(lambda _: steps, INFO)
    return TextEngine(client, TOKENIZER), client


async def run(engine: TextEngine, params: SamplingParams, **given_: object) -> list[TextUpdate]:
    request = GenerateRequest(request_id="r", sampling=params)
    updates = engine.generate(PROMPT, request, **given_)  # type: ignore[arg-type]
    return [update async for update in updates]


def request_of(params: SamplingParams) -> GenerateRequest:
    return GenerateRequest(request_id="r", sampling=params)


class Upstream:
    def submit(self, request: GenerateRequest) -> None:
        pass

    def cancel(self, handle: int, index: int | None = None) -> None:
        pass


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def one_by_one(ids: list[int], finish: FinishReason = FinishReason.LENGTH) -> list[SequenceUpdate]:
    return [
        SequenceUpdate(0, [i], finish if n == len(ids) else FinishReason.RUNNING)
        for n, i in enumerate(ids, 1)
    ]


def logprobs_of(ids: list[int]) -> LogprobColumns:
    columns = LogprobColumns()
    for i in ids:
        columns.append_row([i, 5], [-0.5, -0.25], [2, 1])
    return columns


# ------------------------------------------------------------ text, stops, usage


async def test_text_and_usage_stream_with_the_tokens() -> None:
    ids = ids_of("brown fox 🦊!")
    engine, _ = engine_of(one_by_one(ids))
    updates = await run(engine, SamplingParams())
    assert "".join(update.text for update in updates) == "brown fox 🦊!"
    assert [i for update in updates for i in update.token_ids] == ids
    assert [len(u.token_ids) for u in updates] == [1] * len(ids)
    assert {u.num_prompt_tokens for u in updates} == {len(PROMPT)}
    assert [u.finish_reason for u in updates] == [None] * (len(ids) - 1) + ["length"]
    assert not any("\ufffd" in update.text for update in updates)


@given(cuts=st.lists(st.integers(1, 4), min_size=1), logprobs=st.booleans(), keep=st.booleans())
async def test_a_stop_string_cuts_everything_at_its_hit(
    cuts: list[int], logprobs: bool, keep: bool
) -> None:
    ids = ids_of("The lazy dog jumps over")
    hit = 0
    while "dog" not in TOKENIZER.decode(ids[:hit]):
        hit += 1
    steps: list[Step] = []
    rest = ids
    while rest:
        count = cuts[len(steps) % len(cuts)]
        head, rest = rest[:count], rest[count:]
        rows = logprobs_of(head) if logprobs else None
        reason = FinishReason.RUNNING if rest else FinishReason.LENGTH
        steps.append(SequenceUpdate(0, head, reason, logprobs=rows))
    engine, client = engine_of(steps)
    params = SamplingParams(
        stop=["x", "dog"], logprobs=1 if logprobs else None, include_stop_str_in_output=keep
    )
    updates = await run(engine, params)
    last = updates[-1]
    assert "".join(update.text for update in updates) == ("The lazy dog" if keep else "The lazy ")
    assert (last.finish_reason, last.stop_reason) == ("stop", "dog")
    assert [i for update in updates for i in update.token_ids] == ids[:hit]
    assert client.streams[0].cancelled == {0}
    if logprobs:
        entries = [entry for update in updates for entry in update.logprobs or ()]
        assert [entry.chosen.token_id for entry in entries] == ids[:hit]
        shown = [entry for entry in entries if entry.in_text]
        spelled = "".join(entry.chosen.token for entry in shown)
        assert spelled.rstrip("dog") == "The lazy "
        assert all(
            "The lazy dog".startswith(entry.chosen.token, entry.text_offset) for entry in shown
        )
        hidden = [entry.text_offset for entry in entries if not entry.in_text]
        assert hidden == [len("The lazy ")] * len(hidden)


async def test_held_back_text_is_released() -> None:
    ids = ids_of("a d") + ids_of("ay")
    engine, _ = engine_of(one_by_one(ids))
    updates = await run(engine, SamplingParams(stop="dog", logprobs=0))
    assert "".join(update.text for update in updates) == "a day"
    assert updates[-1].finish_reason == "length"


async def test_a_stop_string_before_min_tokens_is_text() -> None:
    ids = ids_of("dog dog dog")
    engine, client = engine_of(one_by_one(ids))
    updates = await run(engine, SamplingParams(stop="dog", min_tokens=len(ids_of("dog"))))
    assert "".join(update.text for update in updates) == "dog "
    assert client.streams[0].cancelled == {0}


@pytest.mark.parametrize(
    ("params", "stop_token_id", "text", "stop_reason"),
    [
        (SamplingParams(), EOS, "fox", None),
        (SamplingParams(stop_token_ids=[EOS]), EOS, "fox", EOS),
        (SamplingParams(skip_special_tokens=False), EOS, "fox", None),
        (
            SamplingParams(skip_special_tokens=False, include_stop_str_in_output=True),
            EOS,
            "fox<|endoftext|>",
            None,
        ),
        (SamplingParams(stop_token_ids=[7]), 7, "fox", 7),
        (SamplingParams(stop_token_ids=[7], logprobs=0, stop="zzz"), 7, "fox", 7),
    ],
)
async def test_the_token_that_ends_a_sequence_counts_and_is_hidden(
    params: SamplingParams, stop_token_id: int, text: str, stop_reason: int | None
) -> None:
    ids = [*ids_of("fox"), stop_token_id]
    rows = None if params.logprobs is None else logprobs_of(ids)
    engine, _ = engine_of([SequenceUpdate(0, ids, FinishReason.STOP, stop_token_id, logprobs=rows)])
    (update,) = await run(engine, params)
    assert (update.text, update.token_ids) == (text, ids)
    assert (update.finish_reason, update.stop_reason) == ("stop", stop_reason)
    if update.logprobs is not None:
        assert [entry.in_text for entry in update.logprobs] == [True] * (len(ids) - 1) + [False]


async def test_a_neighbours_log_probabilities_do_not_matter() -> None:
    dog = ids_of("dog")
    upstream = Upstream()
    table = RequestTable(upstream)
    client = ScriptedEngine(replay([5]), INFO)
    client.generate = table.generate  # type: ignore[method-assign, assignment]
    engine = TextEngine(client, TOKENIZER)
    asking = asyncio.create_task(run(engine, SamplingParams(logprobs=0)))
    stopping = asyncio.create_task(run(engine, SamplingParams(stop="dog")))
    await asyncio.sleep(0)
    num = len(dog)
    table.dispatch(
        pb.OutputBatch(
            handles=[1, 2],
            indexes=[0, 0],
            num_tokens=[num, num],
            token_ids=dog + dog,
            finish_reasons=[FinishReason.LENGTH] * 2,
            stop_token_ids=[-1, -1],
            num_cached_tokens=[0, 0],
            logprobs=logprobs_to_pb(
                LogprobColumns([1] * num + [0] * num, dog, [-1.0] * num, [1] * num)
            ),
        )
    )
    (asked,), (stopped,) = await asking, await stopping
    assert asked.logprobs is not None
    assert [entry.chosen.token_id for entry in asked.logprobs] == dog
    assert (stopped.text, stopped.stop_reason, stopped.logprobs) == ("", "dog", None)


async def test_one_of_several_sequences_is_cancelled_alone() -> None:
    dog, fox = ids_of("dog"), ids_of("fox")
    steps: list[Step] = [
        SequenceUpdate(0, dog),
        SequenceUpdate(1, fox),
        SequenceUpdate(1, fox, FinishReason.LENGTH),
    ]
    engine, client = engine_of(steps)
    updates = await run(engine, SamplingParams(n=2, stop="dog"))
    assert client.streams[0].cancelled == {0}
    assert "".join(u.text for u in updates if u.index == 1) == "foxfox"
    assert [u.finish_reason for u in updates] == ["stop", None, "length"]


async def test_bad_words_are_banned_with_and_without_a_space_in_front() -> None:
    engine, client = engine_of([SequenceUpdate(0, ids_of("x"), FinishReason.LENGTH)])
    params = SamplingParams(bad_words=["fox", " lazy"], bad_words_token_ids=[[5, 6]])
    await run(engine, params)
    sampling = client.requests[0].sampling
    assert sampling.bad_words == ()
    variants = ["fox", " fox", "lazy", " lazy"]
    assert sampling.bad_words_token_ids == ((5, 6), *(tuple(ids_of(text)) for text in variants))


async def test_bad_words_need_a_tokenizer() -> None:
    engine = TextEngine(ScriptedEngine(lambda _: [], INFO), None)
    with pytest.raises(InvalidParameterError) as caught:
        await run(engine, SamplingParams(bad_words=["fox"], detokenize=False))
    assert caught.value.param == "bad_words"


# ------------------------------------------------------------ log probabilities


async def test_log_probabilities_have_texts_and_bytes() -> None:
    ids = ids_of("é fox")
    engine, _ = engine_of([SequenceUpdate(0, ids, FinishReason.LENGTH, logprobs=logprobs_of(ids))])
    (update,) = await run(engine, SamplingParams(logprobs=1))
    assert update.logprobs is not None
    entries = update.logprobs
    assert b"".join(entry.chosen.token_bytes for entry in entries).decode() == "é fox"
    assert [entry.chosen.token_id for entry in entries] == ids
    assert all((e.chosen.logprob, e.chosen.rank, len(e.top)) == (-0.5, 2, 1) for e in entries)
    assert entries[0].top[0].token_id == 5


async def test_a_part_of_a_character_is_named_by_its_bytes() -> None:
    ids = ids_of("🦊")
    assert len(ids) > 1
    engine, _ = engine_of([SequenceUpdate(0, ids, FinishReason.LENGTH, logprobs=logprobs_of(ids))])
    (update,) = await run(engine, SamplingParams(logprobs=0))
    assert update.logprobs is not None
    last = update.logprobs[-1].chosen
    assert last.token == "bytes:" + "".join(f"\\x{byte:02x}" for byte in last.token_bytes)
    assert b"".join(entry.chosen.token_bytes for entry in update.logprobs) == "🦊".encode()
    assert {entry.text_offset for entry in update.logprobs} == {0}


async def test_prompt_log_probabilities_come_whole_though_they_are_computed_in_chunks() -> None:
    fox = ids_of("fox")
    steps = [
        SequenceUpdate(0, [], prompt_logprobs=logprobs_of(PROMPT[1:3])),
        SequenceUpdate(0, [], prompt_logprobs=logprobs_of(PROMPT[3:])),
        SequenceUpdate(0, fox, FinishReason.LENGTH),
    ]
    engine, _ = engine_of(steps)
    (update,) = await run(engine, SamplingParams(prompt_logprobs=1))
    assert update.prompt_logprobs is not None
    first, *rest = update.prompt_logprobs
    assert first is None
    assert [entry.chosen.token_id for entry in rest if entry] == PROMPT[1:]


async def test_best_of_returns_the_most_likely_and_keeps_its_own_logprobs_to_itself() -> None:
    texts = ["fox", "dog", "over"]
    scores = [-3.0, -1.0, -2.0]
    steps: list[Step] = []
    for index, (text, score) in enumerate(zip(texts, scores, strict=True)):
        ids = ids_of(text)
        rows = LogprobColumns([1] * len(ids), ids, [score] * len(ids), [1] * len(ids))
        steps.append(SequenceUpdate(index, ids, FinishReason.LENGTH, logprobs=rows))
    engine, client = engine_of(steps)
    updates = await run(engine, SamplingParams(n=2, best_of=3))
    assert [(u.index, u.text) for u in updates] == [(0, "dog"), (1, "over")]
    assert all(u.logprobs is None and u.finish_reason == "length" for u in updates)
    assert client.requests[0].sampling.num_sequences == 3
    assert client.requests[0].sampling.logprobs == 0


# ------------------------------------------------------------ requests


async def test_a_request_is_resolved_before_it_is_submitted() -> None:
    engine, client = engine_of([SequenceUpdate(0, [5], FinishReason.LENGTH)])
    params = SamplingParams(max_tokens=None, truncate_prompt_tokens=2, stop="x")
    updates = engine.generate(PROMPT, replace(request_of(params), priority=3, cache_salt="s"))
    assert client.requests == []  # submitted at the first iteration
    async for _ in updates:
        pass
    (request,) = client.requests
    assert prompt_of(request) == PROMPT[-2:]
    assert request.sampling.max_tokens == INFO.max_model_len - 2
    assert request.sampling.seed is not None
    assert (request.priority, request.cache_salt, request.request_id) == (3, "s", "r")


async def test_leaving_cancels_upstream() -> None:
    engine, client = engine_of([SequenceUpdate(0, [5]), Hold()])
    async with aclosing(engine.generate(PROMPT, request_of(SamplingParams()))) as updates:
        async for _ in updates:
            break
    assert client.streams[0].given_up


async def test_a_cancelled_reader_cancels_upstream_best_of_too() -> None:
    hold = Hold()
    engine, client = engine_of([hold])
    task = asyncio.create_task(run(engine, SamplingParams(best_of=2)))
    await hold.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.streams[0].given_up


async def test_an_engine_error_passes_through() -> None:
    engine, _ = engine_of([SequenceUpdate(0, [5]), EngineError(504, "late")])
    with pytest.raises(EngineError, match="late"):
        await run(engine, SamplingParams())


@pytest.mark.parametrize(
    ("prompt", "params", "param", "code"),
    [
        ([], SamplingParams(), "prompt", None),
        ([5] * INFO.max_model_len, SamplingParams(), "prompt", "context_length_exceeded"),
        ([5] * 500, SamplingParams(max_tokens=13), "max_tokens", "context_length_exceeded"),
        ([5, -1], SamplingParams(), "prompt", None),
        ([5, INFO.vocab_size], SamplingParams(), "prompt", None),
        ([5, 2**40], SamplingParams(), "prompt", None),
        ([5], SamplingParams(logprobs=21), "logprobs", None),
        ([5], SamplingParams(prompt_logprobs=21), "prompt_logprobs", None),
        ([5], SamplingParams(logit_bias={10**9: 1.0}), "logit_bias", None),
        ([5], SamplingParams(stop_token_ids=[INFO.vocab_size]), "stop_token_ids", None),
    ],
)
def test_parameters_out_of_the_models_range_are_rejected_at_once(
    prompt: list[int], params: SamplingParams, param: str, code: str | None
) -> None:
    engine, client = engine_of([])
    with pytest.raises(InvalidParameterError) as raised:
        engine.generate(prompt, request_of(params))
    assert (raised.value.param, raised.value.code) == (param, code)
    assert client.requests == []


async def test_clamping_shortens_instead_of_refusing() -> None:
    engine, client = engine_of([SequenceUpdate(0, [5], FinishReason.LENGTH)])
    params = SamplingParams(max_tokens=600, min_tokens=600)
    await run(engine, params, clamp_max_tokens=True)
    room = INFO.max_model_len - len(PROMPT)
    sampling = client.requests[0].sampling
    assert (sampling.max_tokens, sampling.min_tokens) == (room, room)


def test_no_worker_is_an_error_that_says_so() -> None:
    for info in (None, replace(INFO, ready=False)):
        engine = TextEngine(ScriptedEngine(replay([5]), info), TOKENIZER)
        with pytest.raises(EngineError) as raised:
            engine.generate(PROMPT, request_of(SamplingParams()))
        assert raised.value.code == 503


def test_client_parameters_override_the_models_defaults() -> None:
    info = replace(INFO, default_sampling={"temperature": 0.6, "top_k": 20.0, "unknown": 1.0})
    engine = TextEngine(ScriptedEngine(replay([5]), info), TOKENIZER)
    params = engine.sampling_params({"temperature": None, "top_p": 0.5, "stop": None})
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.5)
    assert engine.sampling_params({"temperature": 0.0}).temperature == 0.0
    with pytest.raises(InvalidParameterError):
        engine.sampling_params({"top_p": 2})


async def test_half_a_surrogate_pair_is_rejected() -> None:
    engine, _ = engine_of([])
    with pytest.raises(InvalidParameterError):
        await engine.encode("a\ud800b")


async def test_without_a_tokenizer_there_are_token_ids_only() -> None:
    steps = [SequenceUpdate(0, [5, 6], FinishReason.LENGTH, logprobs=logprobs_of([5, 6]))]
    engine = TextEngine(ScriptedEngine(lambda _: steps, INFO), None)
    (update,) = await run(engine, SamplingParams(logprobs=1))
    assert (update.text, update.token_ids) == ("", [5, 6])
    assert update.logprobs is not None
    assert [entry.chosen.token for entry in update.logprobs] == ["", ""]
    for ask in (engine.encode("x"), engine.encode_chat([{"role": "user", "content": "x"}])):
        with pytest.raises(InvalidParameterError):
            await ask
    with pytest.raises(InvalidParameterError):
        engine.generate([5], request_of(SamplingParams(stop="x")))
