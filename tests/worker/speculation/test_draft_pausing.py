from taco_worker.speculation.draft_pausing import Rest


def draft(rest: Rest, gain: float, *, seconds: float, step: float = 0.010, times: int = 1) -> None:
    for _ in range(times):
        rest.note_drafting(seconds)
        rest.note_gain(gain, step)
        rest.note_step()


def steps_until_tried(rest: Rest) -> int:
    count = 0
    while rest.is_on:
        rest.note_step()
        count += 1
    return count


def test_a_drafter_that_gains_does_not_rest() -> None:
    rest = Rest()
    draft(rest, 1.4, seconds=0.004, times=100)
    assert not rest.is_on


def test_a_slow_one_that_does_not_rests_for_long() -> None:
    rest = Rest()
    draft(rest, 0.7, seconds=0.004, times=3)
    assert rest.is_on
    assert 15 < steps_until_tried(rest) <= 20  # 0.4 of a step's time, of which 0.02 a step


def test_a_cheap_one_hardly_rests() -> None:
    rest = Rest()
    draft(rest, 0.9, seconds=0.00004, times=20)
    assert steps_until_tried(rest) == 0


def test_after_its_rest_one_step_tells() -> None:
    rest = Rest()
    draft(rest, 0.7, seconds=0.004, times=3)
    steps_until_tried(rest)
    draft(rest, 0.7, seconds=0.004)
    assert rest.is_on
    steps_until_tried(rest)
    draft(rest, 1.5, seconds=0.004)
    assert not rest.is_on


def test_drafting_that_was_held_up_once_is_not_believed_slow() -> None:
    rest = Rest()
    draft(rest, 1.2, seconds=0.001, times=30)
    draft(rest, 1.2, seconds=1.0)
    assert rest.draft_seconds < 0.002
