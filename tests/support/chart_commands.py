"""The commands of the charts' pods, given to what reads them in TACO."""

import argparse
from collections.abc import Sequence

from taco_llm.args.admin_args import AdminArgs
from taco_llm.args.draft_worker_args import DraftWorkerArgs
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import given
from taco_llm.args.gateway_args import GatewayArgs
from taco_llm.args.scheduler_args import SchedulerArgs
from taco_llm.cli.main import build_parser
from taco_llm.cli.options import collect

# The flags of each command; a table checks its values when it is made. The license server has none.
_TABLES: dict[str, tuple[type, ...]] = {
    "gateway": (GatewayArgs,),
    "scheduler": (SchedulerArgs, AdminArgs),
    "worker": (EngineArgs, AdminArgs),
    "draft-worker": (DraftWorkerArgs, AdminArgs),
    "license": (),
}


def accepted(arguments: Sequence[str]) -> argparse.Namespace:
    """What the parser makes of a command that its tables accept as well.

    Raises:
        SystemExit: the parser refuses it.
        ConfigurationError: a value is out of range or contradicts another.
    """
    namespace = build_parser().parse_args(arguments)
    tables = _TABLES[namespace.command]
    if tables:
        values = collect(namespace.parser, namespace)
        for table in tables:
            table(**given(table, values))
    return namespace
