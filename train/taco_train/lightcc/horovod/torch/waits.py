"""Waiting for the other ranks."""

from __future__ import annotations

from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set, group_of
from taco_train.lightcc.horovod.state import current
from taco_train.lightcc.horovod.torch.submit import name_of
from taco_train.lightcc.negotiation.requests import Kind, Request


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks of the set have called it."""
    engine = current().engine
    group = group_of(process_set)
    name = name_of(Kind.BARRIER, None, group)
    engine.wait(engine.submit(Request(Kind.BARRIER, name, group=group)))


def join(device: int = -1) -> int:
    """This rank has no more data: it contributes zeros until all ranks have joined.

    Args:
        device: not needed; Horovod takes it.

    Returns:
        The rank that joined last.
    """
    engine = current().engine
    last: int = engine.wait(engine.join(Request(Kind.BARRIER, "join")))
    return last
