"""The logits processors that workers tell, and requests that name them."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_scheduler.admission.validation import InvalidWorkerError, OtherModelError


@pytest.mark.parametrize("name", ["x" * 257, "a:B\nforged line"])
def test_a_name_that_cannot_be_shown_is_rejected(name: str) -> None:
    with pytest.raises(InvalidWorkerError, match="printable"):
        Driver().attach(worker_info(logits_processors=(name,)))


def test_all_workers_load_the_same_processors() -> None:
    d = Driver()
    d.attach(worker_info(logits_processors=("a:B", "a:C")))
    d.attach(worker_info(logits_processors=("a:B", "a:C")))
    with pytest.raises(OtherModelError, match="logits_processors"):
        d.attach(worker_info(logits_processors=("a:C", "a:B")))


def test_a_request_with_an_unknown_processor_is_rejected() -> None:
    d = Driver()
    d.attach(worker_info(logits_processors=("a:B",)))
    d.submit(0, [5], max_tokens=2, logits_processors=["a:B"])
    d.submit(1, [5], max_tokens=2, logits_processors=["a:B", "os:system"])
    d.run()
    assert d.got.tokens[0, 0]
    assert d.got.errors == {1: (400, "the workers have not loaded 'os:system'")}
