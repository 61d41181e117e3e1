from taco_worker.speculation.draft_pausing import DraftPause


def draft(
    pause: DraftPause, gain: float, *, seconds: float, step: float = 0.010, times: int = 1
) -> None:
    for _ in range(times):
        pause.record_draft_time(seconds)
        pause.record_speedup(gain, step)
        pause.count_step()


def steps_until_tried(pause: DraftPause) -> int:
    count = 0
    while pause.is_paused:
        pause.count_step()
        count += 1
    return count


def test_a_drafter_that_gains_does_not_rest() -> None:
    pause = DraftPause()
    draft(pause, 1.4, seconds=0.004, times=100)
    assert not pause.is_paused


def test_a_slow_one_that_does_not_rests_for_long() -> None:
    pause = DraftPause()
    draft(pause, 0.7, seconds=0.004, times=3)
    assert pause.is_paused
    assert 15 < steps_until_tried(pause) <= 20  # 0.4 of a step's time, of which 0.02 a step


def test_a_cheap_one_hardly_rests() -> None:
    pause = DraftPause()
    draft(pause, 0.9, seconds=0.00004, times=20)
    assert steps_until_tried(pause) == 0


def test_after_its_rest_one_step_tells() -> None:
    pause = DraftPause()
    draft(pause, 0.7, seconds=0.004, times=3)
    steps_until_tried(pause)
    draft(pause, 0.7, seconds=0.004)
    assert pause.is_paused
    steps_until_tried(pause)
    draft(pause, 1.5, seconds=0.004)
    assert not pause.is_paused


def test_drafting_that_was_held_up_once_is_not_believed_slow() -> None:
    pause = DraftPause()
    draft(pause, 1.2, seconds=0.001, times=30)
    draft(pause, 1.2, seconds=1.0)
    assert pause.draft_seconds < 0.002
