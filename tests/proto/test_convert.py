"""Everything that crosses a process boundary survives the round trip through its message."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_proto import convert
from taco_proto import scheduler_pb2 as pb
from taco_proto.convert_sampling import sampling_columns_from_pb, sampling_columns_to_pb
from taco_proto.errors import InvalidParameterError
from taco_proto.licenses import (
    NEEDS_NO_LICENSE,
    LicenseState,
    WorkerLicense,
)
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import GenerateRequest, ModelInfo, PrefixPin, Tenant
from taco_proto.sampling_params import EarlyStopping, SamplingParams
from taco_proto.steps import EMPTY, JoinedSequences, StepOutput, StepPlan, WorkerInfo

token_ids = st.integers(0, 2**31 - 2)
small = st.integers(0, 2**16)
f32 = st.floats(0.0625, 1.0, width=32)
extra_args = st.dictionaries(
    st.text(max_size=3), st.integers() | st.text(max_size=3) | st.lists(f32), min_size=1, max_size=3
)


def _array(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@st.composite
def sampling_params(draw: st.DrawFn, max_tokens: int | None = 64) -> SamplingParams:
    return SamplingParams(
        n=1 if max_tokens is None else draw(st.integers(1, 128)),
        presence_penalty=draw(st.floats(-2, 2, width=32)),
        frequency_penalty=draw(st.floats(-2, 2, width=32)),
        repetition_penalty=draw(f32),
        temperature=draw(st.floats(0, 2**10, width=32)),
        top_p=draw(f32),
        top_k=draw(st.sampled_from([-1, 1, 50])),
        min_p=draw(f32),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        ignore_eos=draw(st.booleans()),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, 64)),
        logprobs=draw(st.none() | st.integers(0, 20)),
        prompt_logprobs=draw(st.none() | st.integers(0, 20)),
        no_repeat_ngram_size=draw(st.integers(0, 8)),
        stop_token_ids=draw(st.lists(token_ids, max_size=3)),
        logit_bias=draw(st.dictionaries(token_ids, st.floats(-100, 100, width=32), max_size=3)),
        allowed_token_ids=draw(st.none() | st.lists(token_ids, min_size=1, max_size=3)),
        bad_words_token_ids=draw(st.lists(st.lists(token_ids, min_size=1, max_size=3), max_size=3)),
        logits_processors=draw(st.lists(st.text(min_size=1, max_size=9), max_size=3)),
        extra_args=draw(st.none() | extra_args),
        logprob_token_ids=draw(st.none() | st.lists(token_ids, max_size=3)),
        detokenize=False,
    )


@st.composite
def joined_sequences(draw: st.DrawFn) -> JoinedSequences:
    counts = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=4))
    tokens, blocks = [c[0] for c in counts], [c[1] for c in counts]
    omitted = [draw(st.integers(0, count)) for count in tokens]
    num_sent = sum(tokens) - sum(omitted)
    return JoinedSequences(
        slots=_array(list(range(len(counts)))),
        num_prompt_tokens=_array(tokens),
        num_tokens=_array(tokens),
        num_computed_tokens=_array([0] * len(counts)),
        token_ids=_array(draw(st.lists(token_ids, min_size=num_sent, max_size=num_sent))),
        num_omitted_tokens=_array(omitted),
        num_blocks=_array(blocks),
        block_ids=_array(list(range(sum(blocks)))),
        sampling=tuple(draw(sampling_params(max_tokens=None)) for _ in counts),
        adapters=draw(st.just(()) | st.tuples(*[st.text(max_size=3)] * len(counts))),
        state_snapshots=draw(
            st.just(EMPTY) | st.tuples(*[st.integers(-1, 9)] * len(counts)).map(_array)
        ),
    )


@st.composite
def logprob_columns(draw: st.DrawFn) -> LogprobColumns:
    columns = LogprobColumns()
    for count in draw(st.lists(st.integers(0, 3), max_size=4)):
        columns.append_row(
            draw(st.lists(token_ids, min_size=count, max_size=count)),
            draw(st.lists(st.floats(-100, 0, width=32), min_size=count, max_size=count)),
            draw(st.lists(small, min_size=count, max_size=count)),
        )
    return columns


def assert_equal(left: Any, right: Any) -> None:
    """Dataclasses field by field, arrays element by element."""
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.tolist() == right.tolist()
    elif isinstance(left, StepPlan | StepOutput | JoinedSequences):
        for name in left.__dataclass_fields__:
            assert_equal(getattr(left, name), getattr(right, name))
    else:
        assert left == right


@given(params=sampling_params(), prompt=st.binary(max_size=16), handle=small)
def test_submit(params: SamplingParams, prompt: bytes, handle: int) -> None:
    request = GenerateRequest(
        handle=handle,
        request_id="cmpl-1",
        token_ids=prompt,
        emitted_token_ids=(prompt, b"", prompt),
        finished_indexes=(1,),
        quota_charged=True,
        sampling=params,
        priority=-3,
        deadline=12.5,
        tenant=Tenant(name="a", weight=0.3, max_requests_per_minute=7, max_concurrent_requests=2),
        adapter="b",
        cache_salt="c",
        pins=(PrefixPin(7, 300.0), PrefixPin(3, 0.1)),
        prompt_cache_key="d",
    )
    wire = convert.submit_to_pb(request, 4.0).SerializeToString()
    # The receiver's clock has another origin: what remains is the same.
    received = convert.submit_from_pb(pb.Submit.FromString(wire), 1004.0)
    assert received == replace(request, deadline=1012.5)


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_a_beam_search_travels(early_stopping: EarlyStopping) -> None:
    params = SamplingParams(
        n=2,
        best_of=5,
        use_beam_search=True,
        length_penalty=0.3,
        early_stopping=early_stopping,
        seed=1,
        detokenize=False,
    )
    request = GenerateRequest(request_id="r", sampling=params)
    wire = convert.submit_to_pb(request, 0.0).SerializeToString()
    assert convert.submit_from_pb(pb.Submit.FromString(wire), 0.0).sampling == params
    rows = (params.with_updates(n=1, best_of=None, max_tokens=None), SamplingParams(seed=2))
    columns = sampling_columns_from_pb(sampling_columns_to_pb(rows))
    assert [row.use_beam_search for row in columns] == [True, False]


def test_a_submit_without_a_deadline_has_none_when_it_arrives() -> None:
    params = SamplingParams(seed=1, max_tokens=1)
    request = GenerateRequest(handle=1, request_id="r", token_ids=b"", sampling=params)
    assert convert.submit_from_pb(convert.submit_to_pb(request, 4.0), 9.0).deadline is None


def test_a_function_does_not_travel() -> None:
    params = SamplingParams(seed=1, logits_processors=["a:B", lambda output, logits: logits])
    request = GenerateRequest(handle=1, request_id="r", token_ids=b"", sampling=params)
    with pytest.raises(InvalidParameterError, match="only in the engine's own process"):
        convert.submit_to_pb(request, 4.0)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 10_000, '"' + "x" * 2**14 + '"'])
def test_arguments_that_are_no_small_object_are_rejected(text: str) -> None:
    params = SamplingParams(seed=1)
    request = GenerateRequest(handle=1, request_id="r", token_ids=b"", sampling=params)
    message = convert.submit_to_pb(request, 4.0)
    message.sampling.extra_args = text
    with pytest.raises(InvalidParameterError, match="extra_args"):
        convert.submit_from_pb(message, 4.0)


@given(data=st.data())
def test_step_plan(data: st.DataObject) -> None:
    slots = data.draw(st.lists(small, max_size=8))
    ones = data.draw(st.booleans())
    saved = data.draw(st.lists(st.integers(0, 9), max_size=2))
    plan = StepPlan(
        epoch=3,
        step_id=2**40,
        slots=_array(slots),
        num_tokens=_array([1 if ones else i + 1 for i in range(len(slots))]),
        left_slots=_array(data.draw(st.lists(small, max_size=3))),
        joined=data.draw(st.none() | joined_sequences()),
        appended_slots=_array([1, 1]),
        appended_blocks=_array([7, 9]),
        saved_slots=_array(saved),
        saved_positions=_array([16 * (slot + 1) for slot in saved]),
        saved_snapshots=_array([slot + 2 for slot in saved]),
        is_announced=data.draw(st.booleans()),
    )
    wire = convert.step_plan_to_pb(plan).SerializeToString()
    assert_equal(plan, convert.step_plan_from_pb(pb.StepPlan.FromString(wire)))


def test_a_decode_step_costs_a_few_bytes_a_sequence() -> None:
    plan = StepPlan(
        epoch=1,
        step_id=1000,
        slots=np.arange(256, dtype=np.int32),
        num_tokens=np.ones(256, dtype=np.int32),
    )
    assert len(convert.step_plan_to_pb(plan).SerializeToString()) < 2 * 256


@given(data=st.data())
def test_step_output(data: st.DataObject) -> None:
    slots = data.draw(st.lists(small, max_size=8))
    output = StepOutput(
        epoch=1,
        step_id=9,
        slots=_array(slots),
        token_ids=_array(data.draw(st.lists(token_ids, min_size=len(slots), max_size=len(slots)))),
        logprobs=data.draw(st.none() | logprob_columns()),
        prompt_logprob_slots=EMPTY,
        prompt_logprob_positions=EMPTY,
        prompt_logprobs=data.draw(st.none() | logprob_columns()),
        error=data.draw(st.sampled_from(["", "out of memory"])),
    )
    wire = convert.step_output_to_pb(output).SerializeToString()
    assert_equal(output, convert.step_output_from_pb(pb.StepOutput.FromString(wire)))


def test_model_and_worker_info() -> None:
    common: dict[str, Any] = {
        "model": "m",
        "max_model_len": 1024,
        "vocab_size": 512,
        "eos_token_ids": (1, 2),
        "block_size": 16,
        "num_blocks": 100,
        "max_logprobs": 20,
        "default_sampling": {"temperature": 0.6},
        "logits_processors": ("a:B", "c:D"),
        "adapters": ("sql", "org/chat"),
    }
    info = ModelInfo(**common, ready=False, license_problem="expired", draining=True)
    assert convert.model_info_from_pb(convert.model_info_to_pb(info)) == info
    unlicensed = WorkerLicense(LicenseState.MISSING, "expired")
    worker = WorkerInfo(
        **common,
        name="w",
        max_num_seqs=8,
        max_num_batched_tokens=64,
        needs_history=True,
        license=unlicensed,
        is_recurrent=True,
        num_state_snapshots=12,
    )
    assert convert.worker_info_from_pb(convert.worker_info_to_pb(worker)) == worker


@pytest.mark.parametrize("message", [pb.WorkerHello(), pb.Heartbeat()])
def test_a_worker_that_knows_no_licenses_needs_none(message: pb.WorkerHello | pb.Heartbeat) -> None:
    assert convert.worker_license_from_pb(message) == NEEDS_NO_LICENSE


def test_an_unknown_license_state_counts_as_missing() -> None:
    message = pb.Heartbeat(license=pb.WorkerLicense(state=7, reason="x" * 1000))  # type: ignore[arg-type]
    cut = "x" * 500 + "…"
    assert convert.worker_license_from_pb(message) == WorkerLicense(LicenseState.MISSING, cut)
