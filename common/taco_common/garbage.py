"""Imports without garbage collections."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_imports() -> Iterator[None]:
    """For imports: neither collections meanwhile nor later ones visit the imported objects.

    Collections take a tenth of the time while torch is imported, and each later one that visits
    its objects takes 0.2 s. All other objects of the process are frozen too (`gc.freeze`).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def unfreezing() -> Iterator[None]:
    """For a block with frozen imports in a caller's process, whose cycles must be found again.

    Nothing is visited at the end of the block: the objects are old then.
    """
    was_frozen = gc.get_freeze_count() > 0
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
