"""The program of a supervised child process: `python -m taco_llm.cli.child SERVICE`.

The child reads its configuration as JSON from standard input. This needs no file, shows no API key
in the process list, and the supervisor has already parsed and checked the flags. A child on another
machine gets a command line instead and parses it there, since paths may differ.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from taco_common.garbage import frozen_imports
from taco_common.logging import JSON, LogConfig, configure_logging
from taco_llm.args.flags import DRAFTER, GATEWAY, SCHEDULER, WORKER
from taco_llm.supervisor.child_message import decode_config
from taco_proto.config import DrafterConfig, GatewayConfig, SchedulerConfig, WorkerConfig
from taco_proto.errors import ConfigurationError

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs the service until SIGTERM; returns its exit code."""
    service = sys.argv[1]
    message = json.loads(sys.stdin.buffer.read())
    die_with_parent(message["parent"])
    if "argv" in message:
        from taco_llm.cli.main import main as run_command

        return run_command(message["argv"])
    # The supervisor reads JSON log lines and writes them in the format that its user chose.
    logger = configure_logging(service, LogConfig(JSON, message["log_level"], is_supervised=True))
    try:
        return run(service, message["config"])
    except ConfigurationError as error:
        logger.error("%s", error)
        return 1


def run(service: str, values: Mapping[str, Any]) -> int:
    """Runs a service."""
    with frozen_imports():
        run_service, kind = _import_service(service)
    return run_service(decode_config(kind, values))


def _import_service(service: str) -> tuple[Callable[[Any], int], type]:
    """The function of a service and its configuration's type.

    Imports only the modules of this service, so that all start quickly.
    """
    if service == GATEWAY:
        from taco_gateway.server import run_gateway

        return run_gateway, GatewayConfig
    if service == SCHEDULER:
        from taco_scheduler.server.grpc_server import run_scheduler

        return run_scheduler, SchedulerConfig
    if service == WORKER:
        from taco_worker.server import run_worker

        return run_worker, WorkerConfig
    if service == DRAFTER:
        from taco_draft.server import run_draft_worker

        return run_draft_worker, DrafterConfig
    raise ValueError(f"no service is called {service!r}")


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies for any reason.

    The child sets this itself, since code between fork and exec is unsafe in a process with
    threads. If the parent has already died, the parent id differs and the child exits.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
