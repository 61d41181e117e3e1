"""`taco_llm draft-worker`: one draft worker alone, on any machine with CPU cores to spare."""

import argparse
import os
import socket
from dataclasses import replace

from taco_common.tls import Role
from taco_llm.args.admin_args import AdminArgs
from taco_llm.args.draft_worker_args import DraftWorkerArgs
from taco_llm.args.flags import add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.args.tls_args import TlsArgs
from taco_llm.cli.options import (
    Subparsers,
    add_compatibility_flags,
    add_config_argument,
    add_log_flags,
    add_scheduler_argument,
    collect,
    require,
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "draft-worker",
        usage="taco_llm draft-worker --speculative-model MODEL --scheduler ADDRESS [options]",
        help="Run a draft worker, which drafts tokens with a small model on CPU cores.",
        description="Runs a single draft worker. It loads a small model, connects to the scheduler "
        "and drafts tokens for the sequences that the scheduler names. Workers verify the drafts.",
    )
    add_scheduler_argument(parser)
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="Name of the draft worker in logs. Default: the host name and the process id.",
    )
    add_config_argument(parser)
    add_flags(parser, "draft model", DraftWorkerArgs)
    add_flags(parser, "admin listener", AdminArgs)
    add_flags(parser, "TLS between services", TlsArgs)
    add_log_flags(parser)
    add_compatibility_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "speculative_model", "--speculative-model is needed, the draft model")
    require(values, "scheduler", "--scheduler is needed, the address of the scheduler")
    name = values.get("name", f"{socket.gethostname()}-{os.getpid()}")
    args = DraftWorkerArgs(**given(DraftWorkerArgs, values))
    config = args.drafter_config(values["scheduler"], name)
    admin = AdminArgs(**given(AdminArgs, values))
    tls = TlsArgs(**given(TlsArgs, values)).tls_config(Role.DRAFT_WORKER, config.scheduler)

    from taco_draft.server import run_draft_worker

    return run_draft_worker(
        replace(config, admin_listen=admin.for_worker(config.scheduler), tls=tls)
    )
