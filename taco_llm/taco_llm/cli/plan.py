"""`taco_llm plan MODEL`: how a model is computed, op by op."""

import argparse
from pathlib import Path
from typing import get_args

from taco_llm.args.model_location import locate_model
from taco_llm.args.parser import Parser
from taco_llm.cli.options import Subparsers
from taco_proto.errors import ConfigurationError
from taco_worker.backends.cpu.lowered_ops import MatrixType


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "plan",
        usage="taco_llm plan MODEL [--matrices TYPE]",
        help="Print the ops, parameters and sizes of a model.",
        description="Prints how a model is computed: its parameters, KV cache and the ops of each "
        "layer, then the same after lowering for the CPU kernels. It reads config.json alone.",
    )
    parser.add_argument("model", metavar="MODEL", help="Directory of a model, or a bundled model.")
    parser.add_argument(
        "--matrices",
        metavar="TYPE",
        choices=get_args(MatrixType),
        default="bf16",
        help="Type of the matrices: f32, bf16 or i8 (default bf16).",
    )
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    from taco_worker.backends.plan_listing import list_plan
    from taco_worker.models.config import load_hf_config
    from taco_worker.models.registry import ModelRegistry

    ModelRegistry.recipes_of_packages()  # warns about recipes that are ignored
    directory = Path(locate_model(namespace.model))
    matrices: MatrixType = namespace.__dict__.get("matrices", "bf16")
    try:
        lines = list(list_plan(load_hf_config(directory).plan, matrices))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    print("\n".join(lines))
    return 0
