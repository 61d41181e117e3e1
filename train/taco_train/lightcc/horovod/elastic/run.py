"""`hvd.elastic.run`: calls the training function again when ranks have changed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from taco_train.lightcc.horovod import basics
from taco_train.lightcc.horovod.elastic.membership import is_elastic
from taco_train.lightcc.horovod.elastic.state import State
from taco_train.lightcc.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from taco_train.lightcc.horovod.state import current

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger(__name__)


def run(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[State, P], R]:
    """Decorates a function of a State that trains from there to the end.

    When a collective fails, since a rank was lost, the state goes back to the last commit; when
    hosts have changed, it stays as it is. Then ranks connect anew, the state of rank 0 is sent to
    all, and the function is called again. What TopK has not sent goes with the state, where the
    number of ranks stays. In jobs that are not elastic, errors are raised.
    """

    @functools.wraps(function)
    def repeat(state: State, /, *args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            try:
                state.sync()
                return function(state, *args, **kwargs)
            except HorovodInternalError as error:
                if not is_elastic():
                    raise
                logger.warning("the state goes back to the last commit: %s", error)
                restore = state.restore
            except HostsUpdatedInterrupt:
                logger.info("the hosts have changed")
                restore = _kept_unsent()
            basics.shutdown()
            basics.init()
            restore()  # only now: what TopK has not sent belongs to a job
            state.on_reset()

    return repeat


def _kept_unsent() -> Callable[[], None]:
    """Copies what TopK has not sent in this job; the result loads it into the next one."""
    job = current()
    unsent = job.reducer.state_dict(job.communicator)

    def load() -> None:
        job = current()
        job.reducer.load_state_dict(job.communicator, unsent)

    return load
