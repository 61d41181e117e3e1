"""What int8 costs in quality: perplexity, greedy tokens and logits, by what is stored how.

    python -m bench.engine.perplexity [--model demo] [--windows 32] [--part NAME ...] [--save]

Three tables, each relative to float32:

- engine: the engine's storage types of weights and KV;
- choices: ways to round weights, activations, LM head and KV that the engine has or could have,
  emulated in float32;
- logits: the same ways on random models of large shapes.

The text is TACO's own scheduler, cut into windows of 512 tokens, each read from its beginning. All
tokens but a window's first count. A greedy token differs if the most likely token after the same
text is another one than in float32. Each table is made for the model as it is, and with outlier
channels planted (bench/engine/int8/planting.py).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from bench import record
from bench.engine.int8.llama import read_llama
from bench.engine.int8.planting import PLANTINGS, Planting, plant, write_planted
from bench.engine.int8.quality import Quality, measure_choices, measure_engine, measure_logits
from taco_llm.args.model_location import locate_model

ROOT = Path(__file__).parents[2]
WINDOW = 512
# A bare outlier cannot be planted into a trained model: it would be another model.
DEMO_PLANTINGS: tuple[Planting, ...] = ("none", "compensated")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="a Llama of one safetensors file")
    parser.add_argument("--windows", type=int, default=32, help="windows of text that are read")
    parser.add_argument("--part", action="append", choices=("engine", "choices", "logits"))
    parser.add_argument("--save", action="store_true", help="needs all parts")
    args = parser.parse_args()
    if args.save and args.part:
        parser.error("--save needs all parts")
    torch.set_grad_enabled(False)
    folder = Path(locate_model(args.model))
    windows = read_windows(folder, args.windows)
    parts: dict[str, Callable[[], list[Quality]]] = {
        "engine": lambda: engine_table(folder, windows),
        "choices": lambda: [
            quality
            for planting in DEMO_PLANTINGS
            for quality in measure_choices(plant(read_llama(folder), planting), planting, windows)
        ],
        "logits": lambda: [
            quality for planting in PLANTINGS for quality in measure_logits(planting)
        ],
    }
    figures = {"tokens": windows.shape[0] * (WINDOW - 1)}
    tables = {name: table() for name, table in parts.items() if name in (args.part or parts)}
    if args.save:
        rows = {name: [asdict(quality) for quality in table] for name, table in tables.items()}
        record.save("perplexity", figures | rows)


def engine_table(folder: Path, windows: Tensor) -> list[Quality]:
    qualities: list[Quality] = []
    for planting in DEMO_PLANTINGS:
        with tempfile.TemporaryDirectory() as planted:
            write_planted(folder, Path(planted), planting)
            qualities += measure_engine(planted, planting, windows)
    return qualities


def read_windows(folder: Path, count: int) -> Tensor:
    """Token ids, int64 [count, WINDOW], from windows spread evenly over the text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    windows: list[list[int]] = []
    for path in sorted(ROOT.glob("scheduler/taco_scheduler/**/*.py")):
        ids = tokenizer.encode(path.read_text(), add_special_tokens=False).ids
        windows += [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)]
    if count > len(windows):
        raise SystemExit(f"there are {len(windows)} windows of {WINDOW} tokens, not {count}")
    chosen = [windows[index * len(windows) // count] for index in range(count)]
    return torch.tensor(chosen)


if __name__ == "__main__":
    main()
