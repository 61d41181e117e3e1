"""The LoRA adapters that workers tell, and requests that name them."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import generate, worker_info
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepPlan
from taco_scheduler.admission.validation import InvalidWorkerError, OtherModelError
from taco_scheduler.server.served_model import served_model


def joined_adapters(plans: list[StepPlan]) -> list[tuple[str, ...]]:
    return [plan.joined.adapters for plan in plans if plan.joined is not None]


@pytest.mark.parametrize("name", ["", "x" * 4097, "sql\nforged line"])
def test_a_name_that_cannot_be_shown_is_rejected(name: str) -> None:
    with pytest.raises(InvalidWorkerError, match="an adapter's name"):
        Driver().attach(worker_info(adapters=(name,)))


def test_names_are_unique_and_at_most_1024() -> None:
    with pytest.raises(InvalidWorkerError, match="different names"):
        Driver().attach(worker_info(adapters=("sql", "chat", "sql")))
    with pytest.raises(InvalidWorkerError, match="at most 1024 entries"):
        Driver().attach(worker_info(adapters=tuple(map(str, range(1025)))))


def test_all_workers_have_the_same_adapters() -> None:
    d = Driver()
    d.attach(worker_info(adapters=("sql", "chat")))
    d.attach(worker_info(adapters=("sql", "chat")))
    with pytest.raises(OtherModelError, match="adapters"):
        d.attach(worker_info(adapters=("sql",)))


def test_a_request_with_an_unknown_adapter_is_rejected() -> None:
    d = Driver()
    d.attach(worker_info(adapters=("sql",)))
    d.submit(0, [5], max_tokens=2, adapter="sql")
    d.submit(1, [5], max_tokens=2, adapter="other")
    d.run()
    assert d.got.tokens[0, 0]
    assert d.got.errors == {1: (404, "the workers have not loaded the adapter 'other'")}


def test_the_plan_names_the_adapters_of_joined_sequences() -> None:
    d = Driver()
    d.attach(worker_info(adapters=("sql", "chat")))
    d.submit(0, [5], max_tokens=1)
    d.run()
    assert joined_adapters(d.plans) == [()]
    d.submit(1, [5], max_tokens=1, adapter="sql")
    d.submit(2, [5], max_tokens=1)
    d.submit(3, [5], max_tokens=1, adapter="chat")
    d.run()
    assert joined_adapters(d.plans[1:]) == [("sql", "", "chat")]


def test_a_long_name_is_rejected_before_a_worker_attaches() -> None:
    d = Driver()
    d.submit(0, [5], adapter="x" * 1025)
    d.submit(1, [5], adapter="x" * 1024)
    d.collect()
    assert d.got.errors == {0: (400, "adapter may have at most 1024 characters")}
    d.attach(worker_info(adapters=("sql",)))
    d.run()
    assert d.got.errors[1][0] == 404


def test_the_model_info_names_the_adapters() -> None:
    d = Driver()
    replica = d.attach(worker_info(adapters=("sql", "chat"))).replica
    info = served_model([replica])
    assert info is not None
    assert info.adapters == ("sql", "chat")


def test_adapters_share_no_prefix() -> None:
    d = Driver()
    d.attach(worker_info(adapters=("sql",)))
    for handle, adapter in enumerate(["", "sql", "", "sql"]):
        d.submit(handle, [5] * 40, max_tokens=1, adapter=adapter)
        d.run()
    assert [d.got.cached[handle, 0] > 0 for handle in range(4)] == [False, False, True, True]


def test_a_sequence_keeps_its_adapter_on_another_worker() -> None:
    d = Driver(run_ahead=False)
    info = worker_info(adapters=("sql",))
    d.attach(info)
    d.submit(0, [5] * 6, max_tokens=12, adapter="sql", n=2, ignore_eos=True)
    for _ in range(4):
        d.step()
    assert 0 < len(d.got.tokens[0, 0]) < 12
    num_plans = len(d.plans)
    d.lose_worker()
    d.attach(info)
    d.run()
    rejoined = [name for names in joined_adapters(d.plans[num_plans:]) for name in names]
    assert rejoined == ["sql", "sql"]
    assert [len(tokens) for tokens in d.got.tokens.values()] == [12, 12]


def test_a_resubmitted_request_keeps_its_adapter() -> None:
    """As after a restart of the scheduler."""
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    info = worker_info(adapters=("sql",))
    tokens = generate([5], params, info, 1)
    d = Driver()
    d.attach(info)
    d.submit(0, [5], emitted=tokens[:3], adapter="sql", ignore_eos=True)
    d.run()
    assert joined_adapters(d.plans) == [("sql",)]
    assert d.got.tokens[0, 0] == tokens[3:]


def test_a_request_waits_while_no_worker_has_its_adapter_any_more() -> None:
    d = Driver(run_ahead=False)
    d.attach(worker_info(adapters=("sql",)))
    d.submit(0, [5], max_tokens=12, adapter="sql", ignore_eos=True)
    d.step()
    d.lose_worker()
    d.attach(worker_info(adapters=("chat",)))
    d.run()
    assert not d.got.errors
    d.lose_worker()
    d.attach(worker_info(adapters=("sql",)))
    d.run()
    assert len(d.got.tokens[0, 0]) == 12
