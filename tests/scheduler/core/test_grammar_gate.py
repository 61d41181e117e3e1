"""Sequences with a grammar: the prompt runs while the worker compiles, sampling waits."""

from typing import Any

import pytest

from support.beam_schedule import expected_answer
from support.engine_driver import Driver, make_request
from support.fake_worker import worker_info
from taco_proto.grammars import LARGE_CHARS, Grammar, GrammarCommand, GrammarReady
from taco_proto.requests import LOW_PRIORITY, Tenant
from taco_scheduler.core import request_registry
from taco_scheduler.core.grammar_gate import MAX_COMPILING

GRAMMAR = Grammar.of("start: /a+/")
OTHER = Grammar.of("start: /b+/")


def ready(d: Driver, grammar: Grammar, error: str = "") -> None:
    d.engine.note_grammar(d.peers[0].replica, GrammarReady(grammar.hash, error))


def run(d: Driver) -> int:
    """Run until nothing is left to do now; returns the number of planned tokens."""
    before = len(d.plans)
    d.run()
    return sum(int(plan.num_tokens.sum()) for plan in d.plans[before:])


@pytest.mark.parametrize("budget", [4, 64], ids=["in chunks", "at once"])
def test_a_prompt_runs_up_to_its_last_token_until_the_grammar_is_ready(budget: int) -> None:
    d = Driver(max_num_batched_tokens=budget)
    gate = d.attach().replica.grammars
    d.submit(0, list(range(1, 11)), grammar=GRAMMAR, max_tokens=3)
    d.submit(1, [7] * 5, max_tokens=3)
    command = gate.take_command()
    assert command is not None
    assert command.compiled == (GRAMMAR,)
    run(d)
    assert len(d.got.tokens[1, 0]) == 3, "others are not held"
    assert (0, 0) not in d.got.tokens
    assert run(d) == 0
    assert {plan.joined.grammar_hashes for plan in d.plans if plan.joined} >= {
        (GRAMMAR.hash, b"") if budget == 64 else (GRAMMAR.hash,)
    }
    ready(d, GRAMMAR)
    run(d)
    assert len(d.got.tokens[0, 0]) == 3
    final = gate.take_command()
    assert final is not None
    assert final.released == (GRAMMAR.hash,)


def test_a_prompt_of_one_token_waits_in_the_queue() -> None:
    d = Driver()
    gate = d.attach().replica.grammars
    d.submit(0, [5], grammar=GRAMMAR, max_tokens=2)
    gate.take_command()
    assert run(d) == 0
    ready(d, GRAMMAR)
    run(d)
    assert len(d.got.tokens[0, 0]) == 2


def test_one_tenants_grammars_do_not_hold_up_those_of_another() -> None:
    d = Driver(worker_info(max_num_seqs=64, num_blocks=256))
    gate = d.attach().replica.grammars
    many = [Grammar.of(f"start: /a{number}/") for number in range(3 * MAX_COMPILING)]
    for handle, grammar in enumerate(many):
        d.submit(handle, [5, 6], grammar=grammar, max_tokens=2, tenant=Tenant(name="many"))
    d.submit(100, [5, 6], grammar=OTHER, max_tokens=2, tenant=Tenant(name="few"))
    d.submit(101, [5, 6], grammar=many[-1], max_tokens=2, tenant=Tenant(name="few"))
    command = gate.take_command()
    assert command is not None
    assert command.compiled == (
        many[0], OTHER, many[1], many[-1], *many[2:MAX_COMPILING]
    )  # fmt: skip
    run(d)
    joined = [name for plan in d.plans if plan.joined for name in plan.joined.grammar_hashes]
    assert set(joined) <= {grammar.hash for grammar in command.compiled}, "others wait unsent"
    assert gate.take_command() is None
    ready(d, many[1])
    ready(d, many[2], "too complex")
    following = gate.take_command()
    assert following is not None
    assert following.compiled == tuple(many[MAX_COMPILING : MAX_COMPILING + 2])
    for grammar in (*command.compiled, *many[MAX_COMPILING:-1]):
        ready(d, grammar)
        d.compile_grammars()
    run(d)
    assert len(d.got.tokens) == len(many) + 1
    assert set(d.got.errors) == {2}
    assert d.engine.num_free_blocks == d.engine.num_blocks


def test_a_small_grammar_does_not_wait_for_large_ones() -> None:
    d = Driver(worker_info(max_num_seqs=64, num_blocks=256))
    gate = d.attach().replica.grammars
    large = [Grammar.of(f"start: /{'a' * LARGE_CHARS}{number}/") for number in range(12)]
    for handle, grammar in enumerate((*large, GRAMMAR)):
        d.submit(handle, [5, 6], grammar=grammar, max_tokens=2)
    command = gate.take_command()
    assert command is not None
    assert set(command.compiled) == {*large[:MAX_COMPILING], GRAMMAR}


def test_sequences_that_would_be_held_preempt_none() -> None:
    d = Driver(worker_info(max_num_seqs=4, num_blocks=64), max_num_batched_tokens=64)
    gate = d.attach().replica.grammars
    for handle in range(4):
        d.submit(handle, [5, 6, handle], max_tokens=50, ignore_eos=True, priority=LOW_PRIORITY)
    d.step()
    for handle in range(4, 9):
        tenant = Tenant(name="other")
        d.submit(handle, [5, 6, handle], grammar=GRAMMAR, max_tokens=2, tenant=tenant)
        gate.take_command()
        d.step()
    for _ in range(10):
        d.step()
    assert d.engine.num_running == 4
    assert d.engine.counters.num_preemptions == 2
    ready(d, GRAMMAR)
    run(d)
    assert len(d.got.tokens) == 9


def test_grammars_of_requests_that_left_are_not_compiled() -> None:
    d = Driver(worker_info(max_num_seqs=64, num_blocks=256))
    gate = d.attach().replica.grammars
    many = [Grammar.of(f"start: /a{number}/") for number in range(MAX_COMPILING + 3)]
    for handle, grammar in enumerate(many):
        d.submit(handle, [5, 6], grammar=grammar)
    gate.take_command()
    for handle in range(len(many) - 1):
        d.engine.cancel(d.client, handle)
    released = gate.take_command()
    assert released == GrammarCommand((), tuple(grammar.hash for grammar in many[:MAX_COMPILING]))
    ready(d, many[0])
    command = gate.take_command()
    assert command == GrammarCommand((many[-1],), ())


def test_half_of_the_slots_are_left_to_sequences_without_a_grammar() -> None:
    d = Driver(worker_info(max_num_seqs=4, num_blocks=64), max_num_batched_tokens=64)
    gate = d.attach().replica.grammars
    for handle in range(4):
        d.submit(handle, [5, 6, 7 + handle], grammar=GRAMMAR, max_tokens=2)
    for handle in range(4, 7):
        d.submit(handle, [5, 6, 7 + handle], max_tokens=2)
    gate.take_command()
    run(d)
    assert d.engine.num_running == 2
    assert set(d.got.tokens) == {(4, 0), (5, 0), (6, 0)}
    ready(d, GRAMMAR)
    run(d)
    assert len(d.got.tokens) == 7


def test_a_grammar_that_cannot_be_compiled_fails_its_requests_only() -> None:
    d = Driver()
    d.attach().replica.grammars.take_command()
    d.submit(0, [5, 6], grammar=GRAMMAR)
    d.submit(1, [5, 6], grammar=OTHER, max_tokens=2)
    d.peers[0].replica.grammars.take_command()
    ready(d, GRAMMAR, "too complex")
    ready(d, OTHER)
    run(d)
    assert d.got.errors == {0: (400, "too complex")}
    assert d.got.reasons_of_errors == {0: "invalid_grammar"}
    assert len(d.got.tokens[1, 0]) == 2
    assert d.engine.num_free_blocks == d.engine.num_blocks


def test_a_lost_worker_does_not_keep_a_grammar_from_the_next_one() -> None:
    d = Driver()
    d.attach().replica.grammars.take_command()
    d.submit(0, [5, 6, 7], grammar=GRAMMAR, max_tokens=4)
    d.peers[0].replica.grammars.take_command()
    ready(d, GRAMMAR)
    d.plan()
    d.lose_worker()
    command = d.attach().replica.grammars.take_command()
    assert command is not None
    assert command.compiled == (GRAMMAR,)
    run(d)
    assert (0, 0) not in d.got.tokens
    ready(d, GRAMMAR)
    run(d)
    assert len(d.got.tokens[0, 0]) == 4


def test_an_end_token_ends_a_constrained_text_despite_ignore_eos() -> None:
    d = Driver()
    peer = d.attach()
    d.submit(0, [5, 6], grammar=GRAMMAR, ignore_eos=True)
    peer.replica.grammars.take_command()
    ready(d, GRAMMAR)
    d.plan()
    slot = peer.replica.worker.batch.running()
    assert not any(peer.replica.worker.batch.ignore_eos[s.slot] for s in slot)


def test_a_grammar_released_and_used_again_is_compiled_again() -> None:
    d = Driver()
    gate = d.attach().replica.grammars
    for handle in range(2):
        d.submit(handle, [5, 6], grammar=GRAMMAR, max_tokens=1)
        command = gate.take_command()
        assert command is not None
        assert command.compiled == (GRAMMAR,)
        assert command.released == ((GRAMMAR.hash,) if handle else ())
        run(d)
        assert (handle, 0) not in d.got.tokens
        ready(d, GRAMMAR)
        run(d)
        assert len(d.got.tokens[handle, 0]) == 1


@pytest.mark.parametrize("end", ["answer", "cancel", "disconnect", "lose"])
def test_beams_that_fork_are_users_of_their_grammar(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such requests are rejected, but the count of users must not depend on that."""
    monkeypatch.setattr(request_registry, "check_message", lambda message: None)
    d = Driver()
    gate = d.attach().replica.grammars
    prompt = [7, 8, 9, 10, 11, 12]
    beams: dict[str, Any] = {"use_beam_search": True, "n": 4, "max_tokens": 9}
    d.submit(0, prompt, grammar=GRAMMAR, **beams)
    d.compile_grammars()
    for _ in range(4):
        d.step()
        assert gate.take_command() is None
    assert d.engine.num_running + d.engine.num_waiting == 4, "no beam has forked"
    match end:
        case "cancel":
            d.engine.cancel(d.client, 0)
        case "disconnect":
            d.engine.disconnect(d.client)
        case "lose":
            gate = d.attach().replica.grammars
            d.lose_worker()
            d.compile_grammars()
    d.run()
    if end in ("answer", "lose"):
        answer = expected_answer(prompt, make_request(0, prompt, **beams).sampling, d.info)
        assert [d.got.tokens[0, index] for index in range(4)] == [text for text, _, _ in answer]
    assert gate.take_command() == GrammarCommand((), (GRAMMAR.hash,))
    assert d.engine.num_requests == d.engine.num_waiting == d.engine.num_running == 0
    assert d.engine.num_free_blocks == d.engine.num_blocks
