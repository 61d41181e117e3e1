"""Imports without garbage collections."""

import gc
from collections.abc import Iterator

import pytest

from taco_common.garbage import frozen_imports, unfreezing


@pytest.fixture(autouse=True)
def collections() -> Iterator[None]:
    """The tests' own setting; nothing stays frozen."""
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()
    gc.unfreeze()


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_continue_as_before_and_do_not_visit_imported_objects(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with frozen_imports():
        assert not gc.isenabled()
        made: list[object] = [[]]
    assert gc.isenabled() is enabled
    later: list[object] = [[]]
    visited = {id(one) for one in gc.get_objects()}
    assert id(later) in visited
    assert id(made) not in visited


def test_they_continue_after_an_error() -> None:
    gc.enable()
    with pytest.raises(ImportError), frozen_imports():
        raise ImportError
    assert gc.isenabled()


@pytest.mark.parametrize("frozen", [True, False])
def test_objects_are_visited_again_unless_the_process_froze_them_itself(frozen: bool) -> None:
    if frozen:
        gc.freeze()
    with unfreezing(), frozen_imports():
        made: list[object] = [[]]
    visited = {id(one) for one in gc.get_objects()}
    assert (id(made) in visited) is not frozen
