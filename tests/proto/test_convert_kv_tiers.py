"""What is said about the tiers of KV blocks survives the round trip through its message."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_proto import convert, convert_kv_tiers
from taco_proto import scheduler_pb2 as pb
from taco_proto.kv_tiers import StoreCommand, StoredBlock, StoreReport
from taco_proto.steps import BlockCopies, IntArray, StepPlan, WorkerInfo

KEY = bytes(range(16))

keys = st.binary(min_size=16, max_size=16)
blocks = st.integers(0, 2**31 - 1)
stored_blocks = st.builds(
    StoredBlock,
    key=keys,
    parent=st.just(b"") | keys,
    adapter=st.text(max_size=3),
    cache_salt=st.text(max_size=3),
    token_ids=st.binary(min_size=4, max_size=4),
)


def tuples_of(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(values, max_size=3).map(tuple)


def _column(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int32)


columns = st.lists(blocks, max_size=4).map(_column)
copies = st.builds(
    BlockCopies,
    offload_sources=columns,
    offload_targets=columns,
    load_sources=columns,
    load_targets=columns,
)
commands = st.builds(
    StoreCommand,
    writes=tuples_of(st.tuples(blocks, stored_blocks)),
    reads=tuples_of(st.tuples(keys, blocks)),
    deletes=tuples_of(keys),
)
reports = st.builds(
    StoreReport,
    found=tuples_of(stored_blocks),
    is_complete=st.booleans(),
    written=tuples_of(keys),
    read=tuples_of(keys),
    read_seconds=st.floats(0, 1e6),
    failed=tuples_of(keys),
)


@given(copies)
def test_copies_of_a_plan(planned: BlockCopies) -> None:
    plan = StepPlan(epoch=1, step_id=2, slots=_column([]), num_tokens=_column([]), copies=planned)
    sent = convert.step_plan_to_pb(plan).SerializeToString()
    came = convert.step_plan_from_pb(pb.StepPlan.FromString(sent)).copies
    assert came is not None
    for name in BlockCopies.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(came, name), getattr(planned, name))
        assert getattr(came, name).dtype == np.int32


@given(commands)
def test_commands(command: StoreCommand) -> None:
    sent = convert_kv_tiers.store_command_to_pb(command).SerializeToString()
    assert convert_kv_tiers.store_command_from_pb(pb.StoreCommand.FromString(sent)) == command


@given(reports)
def test_reports(report: StoreReport) -> None:
    sent = convert_kv_tiers.store_report_to_pb(report).SerializeToString()
    assert convert_kv_tiers.store_report_from_pb(pb.StoreReport.FromString(sent)) == report


def test_a_worker_says_how_large_its_tiers_are() -> None:
    info = WorkerInfo(
        name="w",
        model="m",
        max_model_len=64,
        vocab_size=9,
        eos_token_ids=(),
        block_size=16,
        num_blocks=4,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        max_logprobs=0,
        num_host_blocks=5,
        num_disk_blocks=6,
    )
    sent = convert.worker_info_to_pb(info).SerializeToString()
    assert convert.worker_info_from_pb(pb.WorkerHello.FromString(sent)) == info


def test_block_numbers_that_are_too_large_come_out_negative() -> None:
    message = pb.StepPlan(copies=pb.BlockCopies(load_targets=[2**31]))
    copies = convert.step_plan_from_pb(message).copies
    assert copies is not None
    assert copies.load_targets[0] < 0


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (pb.StoreCommand(reads=[KEY]), "shorter"),
        (pb.StoreCommand(write_sources=[1]), "shorter"),
        (pb.StoreCommand(reads=[KEY[1:]], read_targets=[1]), "16 bytes, not 15"),
        (pb.StoreCommand(deletes=[b""]), "16 bytes, not 0"),
    ],
)
def test_malformed_commands_are_refused(message: pb.StoreCommand, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        convert_kv_tiers.store_command_from_pb(message)


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"parents": []}, "shorter"),
        ({"parents": [KEY + KEY]}, "16 bytes, not 32"),
        ({"keys": [b"../../etc/passwd"[1:]]}, "16 bytes, not 15"),
        ({"token_ids": [b""]}, "not 0 bytes"),
        ({"token_ids": [b"12345"]}, "not 5 bytes"),
    ],
)
def test_malformed_blocks_are_refused(found: dict[str, list[bytes]], error: str) -> None:
    sound = {"keys": [KEY], "parents": [b""], "token_ids": [b"1234"]}
    blocks = pb.StoredBlocks(**(sound | found), adapters=[""], cache_salts=[""])
    message = pb.StoreReport(found=blocks)
    with pytest.raises(ValueError, match=error):
        convert_kv_tiers.store_report_from_pb(message)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="a duration must be finite"):
        convert_kv_tiers.store_report_from_pb(pb.StoreReport(read_seconds=seconds))
