"""Cost of a commit: one pass over the rows of a step, for any number of gateways."""

from typing import Any

import numpy as np
import pytest

from support.counting_array import CountingArray
from support.engine_driver import Driver, make_request
from support.fake_worker import worker_info
from taco_proto.logprobs import LogprobColumns
from taco_scheduler.state.token_log import TokenLog

pytestmark = pytest.mark.slow

NUM_SEQUENCES = 64


def decoding(num_clients: int, **fields: Any) -> Driver:
    """A full batch that decodes; clients own every `num_clients`-th sequence."""
    driver = Driver(
        worker_info(
            max_num_seqs=NUM_SEQUENCES, num_blocks=4096, eos_token_ids=(), drafts_itself=False
        )
    )
    driver.attach()
    clients = [driver.client, *(driver.connect() for _ in range(num_clients - 1))]
    for handle in range(NUM_SEQUENCES):
        request = make_request(handle, [1 + handle % 50, 2, 3], max_tokens=100, **fields)
        driver.engine.submit(clients[handle % num_clients], request, driver.now)
    for _ in range(3):
        driver.step()
    assert driver.engine.num_running == NUM_SEQUENCES
    return driver


def elements_visited(num_clients: int) -> int:
    """Of the column that says which client a row belongs to, in one commit."""
    driver = decoding(num_clients)
    batch = driver.peers[0].replica.worker.batch
    batch.client = batch.client.view(CountingArray)
    CountingArray.num_visited = 0
    assert driver.plan()
    assert driver.deliver()
    return CountingArray.num_visited


def test_a_commit_looks_for_the_clients_of_rows_once_a_step() -> None:
    visited = elements_visited(2)
    assert 0 < visited <= 8 * NUM_SEQUENCES
    assert elements_visited(NUM_SEQUENCES) <= visited + 2


@pytest.mark.parametrize("num_clients", [1, 2, 16])
def test_log_probabilities_are_sorted_once_a_step(
    num_clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = decoding(num_clients, logprobs=2)
    taken: list[int] = []
    take = LogprobColumns.take

    def counting_take(columns: LogprobColumns, rows: np.ndarray) -> LogprobColumns:
        taken.append(len(rows))
        return take(columns, rows)

    monkeypatch.setattr(LogprobColumns, "take", counting_take)
    monkeypatch.setattr(LogprobColumns, "rows", None)  # no row is made a list in a commit
    assert driver.plan()
    assert driver.deliver()
    assert sum(taken) == (0 if num_clients == 1 else NUM_SEQUENCES)


@pytest.mark.parametrize("num_clients", [1, 3, 16])
def test_every_client_gets_its_own_rows(num_clients: int) -> None:
    driver = decoding(num_clients, logprobs=0)
    alone = decoding(1, logprobs=0)
    driver.run()
    alone.run()
    for number, received in enumerate(driver.received.values()):
        assert received.tokens, number
        for key, tokens in received.tokens.items():
            assert key[0] % num_clients == number
            assert tokens == alone.got.tokens[key]
            assert received.logprobs[key] == alone.got.logprobs[key]
            assert received.reasons[key] is alone.got.reasons[key]


def test_decode_steps_touch_no_array_of_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = decoding(1)
    taken: list[int] = []
    take = TokenLog.take

    def counting_take(log: TokenLog, slot: int) -> list[int]:
        taken.append(slot)
        return take(log, slot)

    monkeypatch.setattr(TokenLog, "take", counting_take)
    for _ in range(30):
        assert driver.step()
    assert taken == []
    sequences = list(driver.peers[0].replica.worker.batch.running())
    driver.collect()
    for sequence in sequences:
        got = driver.got.tokens[sequence.request.handle, 0]
        assert sequence.tokens[3:].tolist() == got[: sequence.num_generated]
    assert sorted(set(taken)) == list(range(NUM_SEQUENCES))


def test_sequences_have_their_tokens_when_the_log_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco_scheduler.state.token_log.MAX_ROWS", 8)
    driver = decoding(1)
    for _ in range(30):
        assert driver.step()
    driver.collect()
    for sequence in driver.peers[0].replica.worker.batch.running():
        got = driver.got.tokens[sequence.request.handle, 0]
        assert sequence.num_generated >= 25
        assert sequence.tokens[3:].tolist() == got[: sequence.num_generated]
