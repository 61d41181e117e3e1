from taco_scheduler.speculation.draft_length_controller import DraftLengthController

MAX_DRAFTS = 6


def pace_of(
    *,
    step: float = 0.010,
    row: float = 0.0001,
    draft: float = 0.001,
    accepted: int = MAX_DRAFTS,
    plain: float = 0.0,
) -> DraftLengthController:
    """Steps of 10 ms, and draft tokens of 1 ms each, of which the first few are always right."""
    pace = DraftLengthController(MAX_DRAFTS)
    for _ in range(60):
        for num_sequences in (1, 32):
            pace.note_plain_step(num_sequences, num_sequences, plain or step + row * num_sequences)
        for num_drafts in (1, 3, 6):
            pace.note_draft(num_drafts, draft * num_drafts, caught_up=False)
            pace.note_step(1 + num_drafts, step + row * (1 + num_drafts))
            pace.note_accepted(num_drafts, min(accepted, num_drafts))
    return pace


def test_plain_steps_are_measured_first_and_then_all_drafts_are_tried() -> None:
    pace = DraftLengthController(MAX_DRAFTS)
    while pace.choose(1) == 0:
        pace.note_plain_step(1, 1, 0.010)
    assert pace.choose(1) == MAX_DRAFTS


def test_no_drafts_if_plain_steps_with_run_ahead_are_faster() -> None:
    assert pace_of(draft=0.004, accepted=1).choose(1) == 1
    assert pace_of(draft=0.004, accepted=1, plain=0.006).choose(1) == 0


def test_plain_steps_are_looked_at_again_now_and_then() -> None:
    pace = pace_of()
    choices = []
    for _ in range(600):
        choices.append(pace.choose(1))
        if choices[-1] == 0:
            pace.note_plain_step(1, 1, 0.010)
    assert 0 < choices.count(0) < 20


def test_trying_again_takes_a_small_share_of_the_time() -> None:
    pace = pace_of(accepted=0)
    while pace.choose(1) == 0:
        pass
    pace.note_draft(1, 0.5, caught_up=True)  # a long text to read: 50 plain steps
    assert pace.choose(1) == 1, "what drafts cost is not known yet"
    pace.note_draft(1, 0.001, caught_up=False)
    choices = [pace.choose(1) for _ in range(4500)]
    assert choices.count(1) == 0
    assert 1 in [pace.choose(1) for _ in range(1000)]


def test_cheap_and_right_drafts_are_requested_at_full_length() -> None:
    assert pace_of().choose(1) == MAX_DRAFTS


def test_no_more_than_are_usually_right() -> None:
    assert pace_of(accepted=2).choose(1) == 2


def test_none_where_drafting_takes_longer_than_decoding() -> None:
    assert pace_of(draft=0.012).choose(1) == 0


def test_none_where_all_are_wrong() -> None:
    assert pace_of(accepted=0).choose(1) == 0


def test_none_where_rows_cost_as_much_as_steps() -> None:
    assert pace_of(step=0.0, row=0.010).choose(1) == 0


def test_one_is_tried_now_and_then_and_drafting_starts_again() -> None:
    pace = pace_of(accepted=0)
    choices = []
    for _ in range(130):
        choices.append(pace.choose(1))
        if choices[-1]:
            pace.note_draft(1, 0.001, caught_up=False)
    assert choices.count(1) >= 1
    assert choices.count(0) >= 127
    for _ in range(400):
        pace.note_accepted(6, 6)
    assert pace.choose(1) == MAX_DRAFTS


def test_a_trial_finds_drafts_that_have_become_fast() -> None:
    pace = pace_of(draft=0.050)
    for _ in range(4000):
        if (num_drafts := pace.choose(1)) > 0:
            pace.note_draft(num_drafts, 0.0005 * num_drafts, caught_up=False)
        else:
            pace.note_plain_step(1, 1, 0.010)
    assert MAX_DRAFTS in [pace.choose(1) for _ in range(2 * MAX_DRAFTS)]


def test_none_where_the_worker_drafts_better_itself() -> None:
    pace = pace_of(accepted=2)
    for _ in range(40):
        pace.note_plain_step(1, 5, 0.010)
    assert pace.choose(1) == 0


def test_reading_a_prompt_does_not_count_as_draft_time() -> None:
    pace = pace_of()
    for _ in range(5):
        pace.note_draft(MAX_DRAFTS, 3.0, caught_up=True)
    assert pace.choose(1) == MAX_DRAFTS


def test_reading_prompts_in_every_request_counts_as_draft_time() -> None:
    pace = pace_of()
    for _ in range(100):
        pace.note_draft(MAX_DRAFTS, 3.0, caught_up=True)
    assert pace.choose(1) == 0


def test_drafting_rests_where_it_proves_to_be_slower_than_was_promised() -> None:
    pace = pace_of()
    assert pace.choose(1) > 0
    for _ in range(40):
        pace.note_drafted_step(1, 3, 0.060)  # of plain steps, three would have taken 30 ms
        pace.choose(1)
    rests = [pace.choose(1) for _ in range(500)]
    assert set(rests) == {0}
    assert any(pace.choose(1) > 0 for _ in range(2000)), "it is never tried again"


def test_a_speedup_continues() -> None:
    pace = pace_of()
    for _ in range(400):
        pace.note_drafted_step(2, 6, 0.020)  # three plain steps would have taken 30 ms
        assert pace.choose(2) > 0


def test_large_batches_leave_less_room() -> None:
    pace = pace_of(row=0.001, draft=0.0005)
    for turn in range(400):
        pace.note_accepted(1, turn % 2)
    assert pace.choose(1) > 0
    assert pace.choose(32) == 0
