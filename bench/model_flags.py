"""Flags of the benchmarks that run a model with random weights."""

import argparse

from bench.peers.make_checkpoint import SHAPES


def make_model_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the model's shape and of the type of its weights."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        default="qwen2-0.5b",
        help="shape of the model (default %(default)s)",
    )
    parser.add_argument(
        "--quantization", choices=["int8"], help="type of the weights (default bfloat16)"
    )
    return parser


def add_kv_cache_dtype_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kv-cache-dtype",
        default="auto",
        help="type of the KV cache, as in taco_llm serve (default %(default)s)",
    )
