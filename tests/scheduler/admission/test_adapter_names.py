"""The LoRA adapters that workers tell, and requests that name them."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_scheduler.admission.validation import InvalidWorkerError, OtherModelError


@pytest.mark.parametrize("name", ["", "x" * 4097, "sql\nforged line"])
def test_a_name_that_cannot_be_shown_is_rejected(name: str) -> None:
    with pytest.raises(InvalidWorkerError, match="an adapter's name"):
        Driver().attach(worker_info(adapters=(name,)))


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
    assert d.plans[0].joined is not None
    assert d.plans[0].joined.adapters == ()
    d.submit(1, [5], max_tokens=1, adapter="sql")
    d.submit(2, [5], max_tokens=1)
    d.submit(3, [5], max_tokens=1, adapter="chat")
    d.run()
    (joined,) = (plan.joined for plan in d.plans[1:] if plan.joined is not None)
    assert joined.adapters == ("sql", "", "chat")
