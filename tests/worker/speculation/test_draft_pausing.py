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


def test_a_useful_drafter_is_not_paused() -> None:
    pause = DraftPause()
    draft(pause, 1.4, seconds=0.004, times=100)
    assert not pause.is_paused


def test_a_slow_useless_drafter_pauses_for_long() -> None:
    pause = DraftPause()
    draft(pause, 0.7, seconds=0.004, times=3)
    assert pause.is_paused
    assert 15 < steps_until_tried(pause) <= 20  # drafting takes 0.4 steps; the budget is 0.02


def test_a_cheap_useless_drafter_pauses_briefly() -> None:
    pause = DraftPause()
    draft(pause, 0.9, seconds=0.00004, times=20)
    assert steps_until_tried(pause) == 0


def test_after_a_pause_one_step_decides() -> None:
    pause = DraftPause()
    draft(pause, 0.7, seconds=0.004, times=3)
    steps_until_tried(pause)
    draft(pause, 0.7, seconds=0.004)
    assert pause.is_paused
    steps_until_tried(pause)
    draft(pause, 1.5, seconds=0.004)
    assert not pause.is_paused


def test_one_delayed_draft_does_not_count_as_slow() -> None:
    pause = DraftPause()
    draft(pause, 1.2, seconds=0.001, times=30)
    draft(pause, 1.2, seconds=1.0)
    assert pause.draft_seconds < 0.002
