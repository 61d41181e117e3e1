"""Which processors a worker loads, and the errors of those that it cannot load."""

import pytest
import torch

from support.logits_processors import Always, Force
from taco_proto.errors import ConfigurationError
from taco_worker.processors.loading import ProcessorContext, import_processors, make_processors

CONTEXT = ProcessorContext("/model", 100, (1,), torch.device("cpu"))
MODULE = "support.logits_processors"


def test_names_and_classes_are_loaded_in_order() -> None:
    classes = import_processors([f"{MODULE}:Force", Always])
    assert classes == {f"{MODULE}:Force": Force, f"{MODULE}:Always": Always}
    made = make_processors(classes, CONTEXT)
    assert [type(processor) for processor in made.values()] == [Force, Always]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module_of_ours:Force", "ModuleNotFoundError"),
        (f"{MODULE}:Missing", "AttributeError"),
        (f"{MODULE}.Force", "MODULE:CLASS"),
        (f"{MODULE}:", "MODULE:CLASS"),
        (f"{MODULE}:math", "not a class"),
        (f"{MODULE}:NoMethod", "no method new_req_logits_processor"),
        (f"{MODULE}:FailsToStart", "OSError: no such file"),
        ("x" * 300, "too long"),
    ],
)
def test_a_processor_that_cannot_be_loaded_is_named(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make_processors(import_processors([name]), CONTEXT)


def test_a_processor_is_loaded_once() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        import_processors([f"{MODULE}:Force", Force])
