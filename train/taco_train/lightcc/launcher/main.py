"""The command `horovodrun`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from taco_train.cluster.store import RendezvousError
from taco_train.lightcc.launcher.host_slots import HostsError
from taco_train.lightcc.launcher.options import Options, make_parser, read_options
from taco_train.lightcc.launcher.rank_group import JobError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, that of the first rank that failed, or 2."""
    options = read_options(make_parser(), sys.argv[1:] if arguments is None else arguments)
    if options == "version":
        return _show(installed_version())
    if options == "check-build":
        from taco_train.lightcc.launcher.check_build import check_build

        return _show(check_build(installed_version()))
    assert isinstance(options, Options)
    for line in options.ignored_flags:
        print(f"horovodrun: {line}", file=sys.stderr)
    with _interrupts_end_the_process():
        return _run(options)


def _show(text: str) -> int:
    """Prints a text; returns the exit code: 1 if its reader has ended (`| head`)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python would flush the rest at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _run(options: Options) -> int:
    # torch takes seconds
    from taco_train.lightcc.launcher.elastic_job import run_elastic
    from taco_train.lightcc.launcher.static_job import run_static
    from taco_train.lightcc.variables import VariableError

    try:
        if options.is_elastic:
            run_elastic(options)
        else:
            run_static(options)
    except (HostsError, VariableError) as error:
        print(f"horovodrun: error: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return error.code
    except (RendezvousError, OSError) as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _interrupts_end_the_process() -> Iterator[None]:
    """An interrupt has its effect at once, also while torch is imported.

    Code that imports may swallow a KeyboardInterrupt, or end with a core dump. Once ranks run,
    RankGroup handles interrupts.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def installed_version() -> str:
    """Of the distribution; `unknown` where it is run from a checkout."""
    try:
        return version("taco-train")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
