"""The token log compared with one list a slot."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taco_scheduler.state.token_log import MAX_ROWS, TokenLog

NUM_SLOTS = 4

steps = st.lists(
    st.one_of(
        st.dictionaries(st.integers(0, NUM_SLOTS - 1), st.integers(1, 33), min_size=1),
        st.tuples(st.sampled_from(["begin", "take"]), st.integers(0, NUM_SLOTS - 1)),
    ),
    max_size=60,
)


@given(steps)
def test_each_owner_takes_its_tokens_in_their_order(steps: list[Any]) -> None:
    log = TokenLog(NUM_SLOTS)
    expected: list[list[int]] = [[] for _ in range(NUM_SLOTS)]
    next_token = 0
    for step in steps:
        match step:
            case ("begin", slot):
                log.begin(slot)
                expected[slot] = []
            case ("take", slot):
                assert log.take(slot) == expected[slot]
                assert log.take(slot) == []
                expected[slot] = []
            case _:
                num_rows = max(step.values())
                if not log.has_room(num_rows):
                    for slot in range(NUM_SLOTS):
                        assert log.take(slot) == expected[slot]
                        expected[slot] = []
                    log.clear()
                assert log.has_room(num_rows)
                num_tokens = sum(step.values())
                tokens = np.arange(next_token, next_token + num_tokens, dtype=np.int32)
                next_token += num_tokens
                slots = np.array(list(step), dtype=np.int32)
                if num_rows == 1:
                    log.add(slots, tokens)
                else:
                    counts = list(step.values())
                    places = np.concatenate([np.arange(count) for count in counts])
                    log.add_several(np.repeat(slots, counts), tokens, places, num_rows)
                start = 0
                for slot, count in step.items():
                    expected[slot] += tokens[start : start + count].tolist()
                    start += count
    assert [log.take(slot) for slot in range(NUM_SLOTS)] == expected


def test_a_log_holds_as_many_rows_as_it_says() -> None:
    log = TokenLog(1)
    for token in range(MAX_ROWS):
        assert log.has_room(1)
        log.add(np.array([0], np.int32), np.array([token], np.int32))
    assert not log.has_room(1)
    assert log.take(0) == list(range(MAX_ROWS))
