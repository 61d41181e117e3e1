"""`taco_llm plan MODEL`: how a model is computed, op by op."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from taco_demo.locate import BUNDLED_HEADS, BUNDLED_MODELS
from taco_llm.args.draft_checkpoint import is_head_directory
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import add_flags, flag_name
from taco_llm.args.model_location import locate_model, suggesting
from taco_llm.args.parser import Parser
from taco_llm.cli.options import Subparsers
from taco_proto.errors import ConfigurationError
from taco_worker.backends.cpu.lowered_ops import MatrixType

# Fields of `EngineArgs` that change how config.json is read.
_CONFIG_FLAGS = (
    *("config_format", "hf_overrides", "rope_scaling", "rope_theta"),
    "disable_sliding_window",
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "plan",
        usage="taco_llm plan MODEL [options]",
        help="Print the ops, parameters and sizes of a model.",
        description="Prints how a model is computed: its parameters, KV cache and the ops of each "
        "layer, then the same after lowering for the CPU kernels. It reads config.json alone; of "
        "EAGLE and Medusa heads also the names and shapes of their tensors.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="Directory of a model or of EAGLE or Medusa heads, a .gguf file, or a bundled model.",
    )
    parser.add_argument(
        "--matrices",
        metavar="TYPE",
        choices=get_args(MatrixType),
        default="bf16",
        help="Type of the matrices: f32, bf16 or i8 (default bf16).",
    )
    add_flags(parser, "model", EngineArgs, only=_CONFIG_FLAGS)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    from taco_worker.models.registry import ModelRegistry

    ModelRegistry.recipes_of_packages()  # warns about recipes that are ignored
    directory = Path(locate_model(namespace.model))
    with suggesting(namespace.model, BUNDLED_MODELS + BUNDLED_HEADS):
        if not directory.is_dir():
            raise ConfigurationError(
                f"there is no directory {namespace.model}: taco_llm plan takes a model's "
                "directory, a .gguf file or a bundled model, and downloads nothing"
            )
    values = vars(namespace)
    options = {name: values[name] for name in _CONFIG_FLAGS if values.get(name) is not None}
    matrices: MatrixType = values.get("matrices", "bf16")
    try:
        lines = list(_lines(directory, options, matrices))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    print("\n".join(lines))
    return 0


def _lines(directory: Path, options: Mapping[str, Any], matrices: MatrixType) -> Iterable[str]:
    """The lines of a model, or of the plans of draft heads."""
    from taco_worker.backends.plan_listing import list_model, list_plans

    if not is_head_directory(directory):
        from taco_worker.models.config import load_hf_config

        return list_model(load_hf_config(directory, **options), matrices)
    if options:
        names = ", ".join(map(flag_name, options))
        raise ConfigurationError(f"{directory} contains draft heads: {names} do not apply to them")
    from taco_worker.speculation.heads.head_plans import head_plans

    return list_plans(head_plans(directory), matrices)
