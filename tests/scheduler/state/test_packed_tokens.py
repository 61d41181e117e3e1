"""Bytes of token ids that the scheduler packs and sends."""

from collections.abc import Callable

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_proto.convert import step_plan_to_pb
from taco_proto.steps import JoinedSequences
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.state.sequence import Sequence
from taco_scheduler.token_ids import TOKEN_BYTES

PROMPT = [token % 60 + 1 for token in range(4000)]


def driver(*, needs_history: bool = False, **config: object) -> Driver:
    info = worker_info(
        block_size=16, num_blocks=1024, max_model_len=8192, needs_history=needs_history
    )
    result = Driver(info, **{"max_num_batched_tokens": 8192, **config})
    result.attach()
    return result


def joined_again(d: Driver, **fields: object) -> JoinedSequences:
    """What joins when PROMPT is submitted a second time."""
    d.submit(1, PROMPT, max_tokens=1)
    d.run()
    d.submit(2, PROMPT, max_tokens=1, **fields)
    d.run()
    joined = next(plan.joined for plan in reversed(d.plans) if plan.joined is not None)
    assert joined.num_computed_tokens.tolist() == [len(PROMPT) - 16]
    return joined


def test_tokens_in_cached_blocks_are_not_sent() -> None:
    d = driver()
    joined = joined_again(d)
    assert joined.token_ids.tolist() == PROMPT[-16:]
    assert joined.num_omitted_tokens.tolist() == [len(PROMPT) - 16]
    sent = [plan for plan in d.plans if plan.joined is not None]
    assert len(step_plan_to_pb(sent[0]).joined.token_ids) == len(PROMPT) * TOKEN_BYTES
    assert len(step_plan_to_pb(sent[1]).joined.token_ids) == 16 * TOKEN_BYTES


@pytest.mark.parametrize(
    "parameter",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.1},
        {"no_repeat_ngram_size": 3},
        {"bad_words_token_ids": [[5, 6]]},
    ],
)
def test_parameters_that_read_the_history_get_it(parameter: dict[str, object]) -> None:
    assert joined_again(driver(), **parameter).token_ids.tolist() == PROMPT


def test_a_worker_that_reads_the_history_gets_it() -> None:
    assert joined_again(driver(needs_history=True)).token_ids.tolist() == PROMPT


def test_a_sequence_is_packed_once_however_many_chunks_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_packed, num_copied = 0, 0
    pack: Callable[[Sequence], bytes] = Sequence.pack
    packed: Callable[..., bytes] = BlockManager._packed

    def counted_pack(sequence: Sequence) -> bytes:
        nonlocal num_packed
        before = sequence.packed
        result = pack(sequence)
        num_packed += 0 if result is before else len(result)
        return result

    def counted_copy(*arguments: object) -> bytes:
        nonlocal num_copied
        result = packed(*arguments)
        num_copied += len(result)
        return result

    monkeypatch.setattr(Sequence, "pack", counted_pack)
    monkeypatch.setattr(BlockManager, "_packed", counted_copy)
    d = driver(max_num_batched_tokens=64)
    d.submit(1, PROMPT, max_tokens=4, ignore_eos=True)
    d.run()
    assert len(d.plans) > 60
    assert num_packed == 0, "they came packed"
    assert num_copied <= len(PROMPT) * TOKEN_BYTES, "each block once, to cache it"
