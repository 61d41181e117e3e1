"""What checkpoint formats cost in quality: perplexity and greedy tokens of the demo model.

    python -m bench.engine.formats.quality [--windows 32] [--save]

Each format is written from the demo model and served by the engine: with activations of 8 bits
where its codes allow it, and of 16. "exact" is the perplexity of the dequantized weights in
float32 without the engine: what the format itself costs. The text is that of
`bench.engine.perplexity`; GPTQ sees another one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from bench import record
from bench.engine.formats.gptq import RoundedMatrix, rounded_by_gptq, rounded_to_nearest
from bench.engine.int8.llama import SmallLlama, read_llama
from bench.engine.int8.planting import Planting, plant
from bench.engine.int8.quality import Quality, exact_perplexity, measure_engine
from bench.engine.perplexity import ROOT, WINDOW, read_windows
from bench.peers.make_quantized import pack_gptq, settings
from taco_llm.args.model_location import locate_model

GROUP_SIZES = (64, 128)
CALIBRATION_WINDOWS = 32
ONLINE = ("int8", "fp8", "bitsandbytes")
ACTIVATIONS = ("int8", "bfloat16")
PLANTINGS: tuple[Planting, ...] = ("none", "compensated")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=32, help="windows of text that are read")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    folder = Path(locate_model("demo"))
    windows = read_windows(folder, args.windows)
    rows = [row for planting in PLANTINGS for row in measure(folder, planting, windows)]
    if args.save:
        tokens = windows.shape[0] * (WINDOW - 1)
        record.save("formats_quality", {"tokens": tokens, "rows": [asdict(row) for row in rows]})


def measure(folder: Path, planting: Planting, windows: Tensor) -> list[Quality]:
    model = plant(read_llama(folder), planting)
    rows: list[Quality] = []
    with tempfile.TemporaryDirectory() as scratch:
        dense = Path(scratch) / "dense"
        write_checkpoint(folder, dense, model.parameters, {})
        types = {"float32": {"dtype": "float32"}, "bfloat16": {"dtype": "bfloat16"}}
        types |= {name: {"dtype": "bfloat16", "quantization": name} for name in ONLINE}
        for name, group_size, rounded in _rounded(model, folder):
            exact = SmallLlama(model.shape, {**model.parameters, **_values(rounded)})
            perplexity = exact_perplexity(exact, windows)
            rows.append(Quality("exact", planting, name, perplexity, 0.0))
            print(rows[-1].show(), flush=True)
            path = Path(scratch) / name.replace(" ", "-")
            write_checkpoint(folder, path, model.parameters, rounded, group_size)
            for kind in ACTIVATIONS:
                options = {"dtype": "bfloat16", "quantized_activations": kind}
                types[f"{name}, {kind} activations"] = {"model": str(path), **options}
        rows += measure_engine(str(dense), planting, windows, types)
    return rows


def _rounded(model: SmallLlama, folder: Path) -> list[tuple[str, int, Mapping[str, RoundedMatrix]]]:
    calibration = calibration_windows(folder)
    found: list[tuple[str, int, Mapping[str, RoundedMatrix]]] = []
    for size in GROUP_SIZES:
        found.append((f"4 bits g{size} to nearest", size, rounded_to_nearest(model, size)))
        found.append((f"4 bits g{size} by GPTQ", size, rounded_by_gptq(model, calibration, size)))
    return found


def calibration_windows(folder: Path) -> Tensor:
    """Token ids, int64 [count, WINDOW], of the gateway's sources."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    windows: list[list[int]] = []
    for path in sorted(ROOT.glob("gateway/taco_gateway/**/*.py")):
        ids = tokenizer.encode(path.read_text(), add_special_tokens=False).ids
        windows += [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)]
    count = CALIBRATION_WINDOWS
    return torch.tensor([windows[index * len(windows) // count] for index in range(count)])


def _values(rounded: Mapping[str, RoundedMatrix]) -> dict[str, Tensor]:
    return {name: matrix.values for name, matrix in rounded.items()}


def write_checkpoint(
    source: Path,
    target: Path,
    parameters: Mapping[str, Tensor],
    rounded: Mapping[str, RoundedMatrix],
    group_size: int = 0,
) -> None:
    """A copy of a bf16 checkpoint with these parameters, and with `rounded` as GPTQ stores it."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text()) | {"tie_word_embeddings": False}
    tensors: dict[str, Tensor] = {}
    for name, tensor in parameters.items():
        if name not in rounded:
            tensors[name] = tensor.bfloat16().clone()
            continue
        matrix, module = rounded[name], name.removesuffix(".weight")
        for suffix, one in pack_gptq(matrix.codes, matrix.scales, group_size).items():
            tensors[f"{module}.{suffix}"] = one.contiguous()
    if rounded:
        config["quantization_config"] = settings("gptq", group_size)
    (target / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
