"""Columns to requests, as they come off the link."""

import asyncio
from array import array

import pytest

from support.patience import PATIENCE_SECONDS
from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_gateway.engine.request_table import RequestTable
from taco_gateway.engine.token_stream import (
    BULK_VALUES,
    MAX_BUFFERED_VALUES,
    MAX_MERGED_ENTRIES,
    MIN_BUFFERED_STEPS,
    TokenStream,
)
from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import logprobs_to_pb
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest
from taco_proto.sampling_params import SamplingParams


class Upstream:
    def __init__(self) -> None:
        self.submitted: list[GenerateRequest] = []
        self.cancelled: list[tuple[int, int | None]] = []

    def submit(self, request: GenerateRequest) -> None:
        self.submitted.append(request)

    def cancel(self, handle: int, index: int | None = None) -> None:
        self.cancelled.append((handle, index))


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
def table(upstream: Upstream) -> RequestTable:
    return RequestTable(upstream)


def request(**sampling: object) -> GenerateRequest:
    params = SamplingParams(seed=1, **sampling)  # type: ignore[arg-type]
    return GenerateRequest(handle=0, request_id="r", token_ids=b"", sampling=params)


def batch_of(*rows: tuple[int, int, list[int], int], logprobs: bool = False) -> pb.OutputBatch:
    """Rows of (handle, index, token ids, finish reason)."""
    batch = pb.OutputBatch()
    columns = LogprobColumns()
    for handle, index, token_ids, reason in rows:
        batch.handles.append(handle)
        batch.indexes.append(index)
        batch.num_tokens.append(len(token_ids))
        batch.token_ids.extend(token_ids)
        batch.finish_reasons.append(reason)
        batch.stop_token_ids.append(-1)
        batch.num_cached_tokens.append(0)
        for token_id in token_ids if logprobs else ():
            # Only odd handles asked: the others' rows are empty.
            columns.append_row(*(([token_id], [-1.0], [1]) if handle % 2 else ([], [], [])))
    if logprobs:
        batch.logprobs.CopyFrom(logprobs_to_pb(columns))
    return batch


async def read_all(stream: TokenStream) -> list[SequenceUpdate]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [update async for update in stream]


RUNNING, LENGTH = FinishReason.RUNNING, FinishReason.LENGTH


async def test_every_request_gets_its_own_rows(table: RequestTable, upstream: Upstream) -> None:
    streams = [table.generate(request()), table.generate(request(n=2))]
    one, two = (stream.request.handle for stream in streams)
    assert [submitted.handle for submitted in upstream.submitted] == [one, two]
    table.dispatch(batch_of((two, 1, [7], RUNNING), (one, 0, [5, 6], RUNNING), logprobs=True))
    table.dispatch(batch_of((two, 0, [8], LENGTH), (99, 0, [1], RUNNING), (two, 1, [], LENGTH)))
    table.dispatch(batch_of((one, 0, [9], LENGTH)))
    assert len(table) == 0
    first, second = [await read_all(stream) for stream in streams]
    assert [(u.index, u.token_ids) for u in first] == [(0, [5, 6, 9])]
    assert first[0].logprobs is not None
    assert first[0].logprobs.token_ids.tolist() == [5, 6]
    assert all(update.logprobs is None for update in second)  # others asked for theirs
    assert [(u.index, u.token_ids) for u in second] == [(1, [7]), (0, [8]), (1, [])]
    assert upstream.cancelled == []


async def test_a_reader_that_waits_is_woken(table: RequestTable) -> None:
    stream = table.generate(request())
    reader = asyncio.create_task(read_all(stream))
    for token_id in range(3):
        await asyncio.sleep(0)
        table.dispatch(batch_of((stream.request.handle, 0, [token_id], RUNNING)))
        await asyncio.sleep(0)
    table.dispatch(batch_of((stream.request.handle, 0, [3], LENGTH)))
    assert [i for update in await reader for i in update.token_ids] == [0, 1, 2, 3]


async def test_a_reader_in_bulk_gets_many_tokens_at_once(table: RequestTable) -> None:
    stream = table.generate(request(logprobs=0))
    stream.read_in_bulk()
    reader = asyncio.create_task(read_all(stream))
    handle = stream.request.handle
    for token_id in range(BULK_VALUES):
        await asyncio.sleep(0)
        table.dispatch(batch_of((handle, 0, [token_id], RUNNING), logprobs=True))
    table.dispatch(batch_of((handle, 0, [7], LENGTH)))
    updates = await reader
    assert [i for update in updates for i in update.token_ids] == [*range(BULK_VALUES), 7]
    assert len(updates) <= 4
    assert updates[-1].finish_reason == LENGTH


async def test_closing_cancels_once_and_what_still_comes_is_dropped(
    table: RequestTable, upstream: Upstream
) -> None:
    stream = table.generate(request(n=2))
    handle = stream.request.handle
    stream.cancel(1)
    stream.cancel(1)
    stream.close()
    stream.close()
    assert upstream.cancelled == [(handle, 1), (handle, None)]
    table.dispatch(batch_of((handle, 0, [5], RUNNING), (handle, 1, [6], FinishReason.ABORTED)))
    assert await read_all(stream) == []
    assert len(table) == 0


async def test_cancelling_every_sequence_ends_the_request(table: RequestTable) -> None:
    stream = table.generate(request(n=2))
    table.dispatch(batch_of((stream.request.handle, 0, [5], RUNNING)))
    stream.cancel(0)
    stream.cancel(1)
    assert await read_all(stream) == []
    assert len(table) == 0


async def test_what_is_submitted_again_is_what_has_not_come(
    table: RequestTable, upstream: Upstream
) -> None:
    stream = table.generate(request(n=4))
    handle = stream.request.handle
    table.dispatch(
        batch_of(
            (handle, 0, [5, 6], RUNNING),
            (handle, 1, [7], LENGTH),
            (handle, 2, [8], RUNNING),
            (handle, 0, [9], RUNNING),
        )
    )
    stream.cancel(2)
    other = RequestTable(upstream)
    table.remove(stream)
    other.attach(stream)
    again = upstream.submitted[-1]
    emitted = [array("i", tokens).tolist() for tokens in again.emitted_token_ids]
    assert emitted == [[5, 6, 9], [], [], []]
    assert again.finished_indexes == (1, 2)
    assert again.token_ids == stream.request.token_ids


async def test_closing_an_ended_request_cancels_nothing(
    table: RequestTable, upstream: Upstream
) -> None:
    stream = table.generate(request())
    table.dispatch(batch_of((stream.request.handle, 0, [5], LENGTH)))
    await read_all(stream)
    stream.close()
    assert upstream.cancelled == []


async def test_an_error_follows_the_unread_updates(table: RequestTable) -> None:
    stream = table.generate(request())
    batch = batch_of((stream.request.handle, 0, [5], RUNNING))
    batch.error_handles.append(stream.request.handle)
    batch.error_codes.append(429)
    batch.error_messages.append("full")
    batch.error_retry_after.append(7)
    table.dispatch(batch)
    assert (await anext(stream)).token_ids == [5]
    with pytest.raises(EngineError, match="full") as raised:
        await anext(stream)
    assert (raised.value.code, raised.value.retry_after) == (429, 7)


@pytest.mark.slow
async def test_a_request_whose_reader_stops_is_cancelled(
    table: RequestTable, upstream: Upstream
) -> None:
    stream = table.generate(request())
    other = table.generate(request())
    handle = stream.request.handle
    for _ in range(MAX_BUFFERED_VALUES // 1000 + 1):
        table.dispatch(batch_of((handle, 0, [5] * 1000, RUNNING)))
    assert upstream.cancelled == [(handle, None)]
    with pytest.raises(EngineError, match=rf"limit {MAX_BUFFERED_VALUES}\).*fewer log prob"):
        await anext(stream)
    table.dispatch(batch_of((other.request.handle, 0, [5], LENGTH)))
    assert len(await read_all(other)) == 1


async def test_the_texts_of_a_beam_search_come_at_once(
    table: RequestTable, upstream: Upstream
) -> None:
    """Their reader has had no time to read, however many tokens they have."""
    stream = table.generate(request(use_beam_search=True, n=2, best_of=4))
    half = MAX_BUFFERED_VALUES // 2 + 1
    handle = stream.request.handle
    table.dispatch(batch_of((handle, 0, [5] * half, LENGTH), (handle, 1, [6] * half, LENGTH)))
    assert not upstream.cancelled
    updates = await read_all(stream)
    assert [(update.index, len(update.token_ids)) for update in updates] == [(0, half), (1, half)]


async def test_steps_with_many_log_probabilities_may_wait(
    table: RequestTable, upstream: Upstream
) -> None:
    """Those of a whole vocabulary are more than the limit."""
    vocab_size = MAX_BUFFERED_VALUES
    stream = table.generate(request(n=2, logprobs=vocab_size))
    handle = stream.request.handle
    columns = LogprobColumns()
    ids = list(range(vocab_size + 1))
    for _ in range(2):
        columns.append_row(ids, [-1.0] * len(ids), ids)
    batch = batch_of((handle, 0, [5], RUNNING), (handle, 1, [6], RUNNING))
    batch.logprobs.CopyFrom(logprobs_to_pb(columns))
    for _ in range(MIN_BUFFERED_STEPS):
        table.dispatch(batch)
        assert not upstream.cancelled
    table.dispatch(batch)
    assert upstream.cancelled == [(handle, None)]


async def test_what_was_read_does_not_count_as_unread(
    table: RequestTable, upstream: Upstream
) -> None:
    """A reader that is always a step behind is slow, and not one that has stopped."""
    stream = table.generate(request(n=2))
    handle, half = stream.request.handle, MAX_BUFFERED_VALUES // 2 - 1
    table.dispatch(batch_of((handle, 0, [5] * half, RUNNING)))
    for index in (1, 0, 1):
        table.dispatch(batch_of((handle, index, [5] * half, RUNNING)))
        assert len((await anext(stream)).token_ids) == half
    assert not upstream.cancelled


async def test_prompt_log_probabilities_come_once_and_in_order(table: RequestTable) -> None:
    stream = table.generate(request(prompt_logprobs=0))
    handle = stream.request.handle
    for positions in ([1, 2], [1, 2, 3]):  # the second time after a resubmission
        columns = LogprobColumns()
        for position in positions:
            columns.append_row([position], [-1.0], [1])
        table.dispatch(
            pb.OutputBatch(
                prompt_logprob_handles=[handle] * len(positions),
                prompt_logprob_positions=positions,
                prompt_logprobs=logprobs_to_pb(columns),
            )
        )
    (update,) = [await anext(stream)]
    assert update.prompt_logprobs is not None
    assert update.prompt_logprobs.token_ids.tolist() == [1, 2, 3]


async def test_unread_updates_of_a_cancelled_sequence_are_dropped(table: RequestTable) -> None:
    stream = table.generate(request(n=2))
    handle = stream.request.handle
    for index, token_id in ((0, 5), (1, 6), (0, 7), (1, 8)):
        table.dispatch(batch_of((handle, index, [token_id], RUNNING)))
    assert (await anext(stream)).token_ids == [5]
    stream.cancel(0)
    table.dispatch(batch_of((handle, 0, [9], RUNNING), (handle, 1, [10], LENGTH)))
    rest = await read_all(stream)
    assert [(update.index, update.token_ids) for update in rest] == [(1, [6, 8, 10])]


async def test_one_step_may_bring_many_prompt_log_probabilities(table: RequestTable) -> None:
    stream = table.generate(request(prompt_logprobs=20))
    handle = stream.request.handle
    num_rows = MAX_BUFFERED_VALUES // 21 + 1
    columns = LogprobColumns()
    for _ in range(num_rows):
        columns.append_row([5] * 21, [-1.0] * 21, [1] * 21)
    table.dispatch(
        pb.OutputBatch(
            prompt_logprob_handles=[handle] * num_rows,
            prompt_logprob_positions=list(range(1, num_rows + 1)),
            prompt_logprobs=logprobs_to_pb(columns),
        )
    )
    update = await anext(stream)
    assert update.prompt_logprobs is not None
    assert len(update.prompt_logprobs.num_entries) == num_rows


async def test_unread_log_probabilities_are_not_copied_again_with_every_step(
    table: RequestTable,
) -> None:
    stream = table.generate(request(logprobs=20))
    handle = stream.request.handle
    num_steps = 3 * MAX_MERGED_ENTRIES // 21
    for _ in range(num_steps):
        batch = batch_of((handle, 0, [5], RUNNING))
        columns = LogprobColumns([21], [5] * 21, [-1.0] * 21, [1] * 21)
        batch.logprobs.CopyFrom(logprobs_to_pb(columns))
        table.dispatch(batch)
    table.dispatch(batch_of((handle, 0, [], LENGTH)))
    updates = [update.logprobs for update in await read_all(stream)]
    sizes = [logprobs.token_ids.size for logprobs in updates if logprobs is not None]
    assert sum(sizes) == 21 * num_steps
    assert max(sizes) <= MAX_MERGED_ENTRIES + 21
    assert len(sizes) <= 4
