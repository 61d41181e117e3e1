"""Creates LoRA adapters of random numbers for a checkpoint, in PEFT's format.

    python -m bench.peers.make_adapters CHECKPOINT DIRECTORY

Each is a folder 0, 1, … of the directory, and changes all linear layers.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bench.peers.workloads import ADAPTER_RANK, NUM_ADAPTERS

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(modules: Mapping[str, Sequence[int]], path: Path, seed: int) -> None:
    """Writes an adapter, with standard deviations that keep activations in range.

    Args:
        modules: shapes [out, in] of the model's weights, of which those of `MODULES` are changed.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module, whole in modules.items():
        if module.rsplit(".", 1)[-1] not in MODULES:
            continue
        rows, columns = whole
        for factor, shape in (("A", (ADAPTER_RANK, columns)), ("B", (rows, ADAPTER_RANK))):
            values = torch.randn(shape, generator=generator) * 0.02
            tensors[f"base_model.model.{module}.lora_{factor}.weight"] = values.bfloat16()
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": ADAPTER_RANK,
        "lora_alpha": 2 * ADAPTER_RANK,
        "target_modules": list(MODULES),
    }
    (path / "adapter_config.json").write_text(json.dumps(settings))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("directory", type=Path)
    args = parser.parse_args()
    modules = {
        name.removesuffix(".weight"): list(weight.shape)
        for name, weight in load_file(args.checkpoint / "model.safetensors").items()
        if name.endswith(".weight")
    }
    for index in range(NUM_ADAPTERS):
        write_adapter(modules, args.directory / str(index), seed=index)


if __name__ == "__main__":
    main()
