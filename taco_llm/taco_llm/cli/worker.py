"""`taco_llm worker`: a single worker, for containers and several machines."""

import argparse
import os
import socket
from dataclasses import replace

from taco_common.tls import Role
from taco_llm.args.admin_args import AdminArgs
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import WORKER, add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.args.tls_args import TlsArgs
from taco_llm.cli.options import (
    Subparsers,
    add_compatibility_flags,
    add_config_argument,
    add_log_flags,
    add_model_argument,
    add_scheduler_argument,
    collect,
    require,
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "worker",
        usage="taco_llm worker MODEL --scheduler ADDRESS [options]",
        help="Run a worker, which computes the model.",
        description="Runs a single worker. It loads the model, connects to the scheduler and runs "
        "the steps that the scheduler plans.",
    )
    add_model_argument(parser)
    add_scheduler_argument(parser)
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="Name of the worker in logs. Default: the host name and the process id.",
    )
    add_config_argument(parser)
    add_flags(parser, "model", EngineArgs, WORKER)
    add_flags(parser, "admin listener", AdminArgs)
    add_flags(parser, "TLS between services", TlsArgs)
    add_log_flags(parser)
    add_compatibility_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "MODEL is needed: taco_llm worker MODEL")
    require(values, "scheduler", "--scheduler is needed, the address of the scheduler")
    name = values.get("name", f"{socket.gethostname()}-{os.getpid()}")
    args = EngineArgs(**given(EngineArgs, values))
    args.warn_of_unused_tier_arguments()
    config = args.worker_config(values["scheduler"], name)
    admin = AdminArgs(**given(AdminArgs, values))
    tls = TlsArgs(**given(TlsArgs, values)).tls_config(Role.WORKER, config.scheduler)

    from taco_worker.server import run_worker

    return run_worker(replace(config, admin_listen=admin.for_worker(config.scheduler), tls=tls))
