"""A job with a fixed number of ranks: it ends when all have ended, or one has failed."""

from __future__ import annotations

import os
import time

from taco_train.collective.store import open_store
from taco_train.lightcc.launcher.host_slots import (
    assign,
    rank_variables,
    store_address,
    store_variables,
)
from taco_train.lightcc.launcher.options import Options
from taco_train.lightcc.launcher.rank_group import (
    Ended,
    Interrupted,
    JobError,
    RankGroup,
    describe_code,
)

_SSH_FAILED = 255


def run_static(options: Options) -> None:
    """Runs the command in every rank until all have ended.

    Raises:
        JobError: a rank failed or did not start, or the launcher was interrupted.
        HostsError: there are fewer slots than ranks.
    """
    assert options.num_ranks is not None
    rank_hosts = assign(options.hosts, options.num_ranks)
    environment = {**os.environ, **options.variables}
    address = store_address(rank_hosts, environment)
    store, port = open_store(
        "127.0.0.1" if address == "127.0.0.1" else "0.0.0.0",
        0,
        serves=True,
        timeout=options.start_timeout,
    )
    group = RankGroup(options.command, options.connection, options.output_folder)
    with group.until_interrupted():
        for host, variables in zip(rank_hosts, rank_variables(rank_hosts), strict=True):
            common = {**options.variables, **store_variables(address, port)}
            group.start(host, {**common, **variables})
        _wait(group, options)
    del store  # served until here


def _wait(group: RankGroup, options: Options) -> None:
    deadline = time.monotonic() + options.start_timeout
    while group.running:
        missing = group.running - group.started
        event = group.next_event(max(0.0, deadline - time.monotonic()) if missing else None)
        if event is None:
            names = ", ".join(f"{number} on host {group.host_of(number)}" for number in missing)
            raise JobError(
                f"ranks not started within {options.start_timeout:g} s: {names}; check that `ssh "
                "HOST` works without a password, or set --start-timeout"
            )
        check_event(group, event)


def check_event(group: RankGroup, event: object) -> None:
    """Raises JobError if the event ends a job of a fixed size."""
    if isinstance(event, Interrupted):
        raise JobError(f"ended by {event.number.name}", 128 + event.number)
    if isinstance(event, Ended) and event.code:
        raise JobError(failure_line(group, event), event.code)


def failure_line(group: RankGroup, event: Ended) -> str:
    """What is known about a rank that failed."""
    host = group.host_of(event.number)
    if event.number not in group.started and event.code == _SSH_FAILED:
        return f"rank {event.number} could not be started: ssh cannot reach host {host}"
    line = f"rank {event.number} on host {host} failed with {describe_code(event.code)}"
    return f"{line}; the other ranks were ended" if len(group.running) else line
