"""`taco_llm convert MODEL --out DIR`: weights as the CPU kernels use them, which start at once."""

import argparse
from pathlib import Path

from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import add_flags
from taco_llm.args.model_location import suggesting
from taco_llm.args.parser import Parser
from taco_llm.cli.options import Subparsers
from taco_proto.errors import ConfigurationError

# Fields of `EngineArgs` that decide where weights come from and how they are packed.
_FLAGS = (
    *("revision", "download_dir", "ignore_patterns", "load_format", "config_format"),
    "merge_lora",
    *("dtype", "quantization", "quantized_activations", "quantize_lm_head"),
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "convert",
        usage="taco_llm convert MODEL --out DIR [options]",
        help="Write a model's weights packed for this CPU, which start at once.",
        description="Packs a model's weights for this CPU's instruction set, and writes them to a "
        "new directory with the model's configuration and tokenizer. `taco_llm serve DIR` maps "
        "them: nothing is converted or copied at the start, and workers on one machine share the "
        "memory. Convert again after an update of TACO, and for another instruction set.",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="Directory of a model, hub id, or a bundled model."
    )
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="New directory for the converted model."
    )
    parser.add_argument(
        "--num-threads", metavar="THREADS", type=int, help="Threads (default: one per core)."
    )
    add_flags(parser, "model", EngineArgs, only=_FLAGS)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    from taco_worker.backends.cpu.conversion import convert_model
    from taco_worker.backends.cpu.kernel_startup import start_cpu_kernels

    values = vars(namespace)
    given = {name: values[name] for name in _FLAGS if values.get(name) is not None}
    wanted = EngineArgs(model=namespace.model, **given).model_config()
    out = Path(namespace.out)
    with suggesting(namespace.model):
        try:
            size = convert_model(wanted, out, lambda: start_cpu_kernels(values.get("num_threads")))
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
    print(f"{out}: {size / 2**20:.0f} MiB of packed matrices")
    print(f"serve it with: taco_llm serve {out}")
    return 0
