"""Writes a checkpoint of `make_checkpoint.py` in 4 bits, as AutoGPTQ or AutoAWQ stores it.

    python bench/peers/make_quantized.py CHECKPOINT DIRECTORY --method gptq [--group-size 128]

Weights are rounded to the nearest code: the files serve comparisons of speed. All matrices of the
layers are quantized, embeddings and LM head stay as they are.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

BITS = 4
_CODES_PER_INT = 32 // BITS
# AutoAWQ stores eight columns in this order in an int32, from the lowest bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--method", choices=("gptq", "awq"), required=True)
    parser.add_argument("--group-size", type=int, default=128)
    args = parser.parse_args()
    try:
        make_quantized(args.checkpoint, args.directory, args.method, args.group_size)
    except ValueError as error:
        parser.error(str(error))


def make_quantized(checkpoint: Path, directory: Path, method: str, group_size: int) -> None:
    """Writes a model directory.

    Raises:
        ValueError: AutoAWQ cannot store a matrix: it has columns beyond the last whole group.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        if ".layers." not in name or tensor.ndim != 2:
            tensors[name] = tensor.half() if tensor.is_floating_point() else tensor
            continue
        module = name.removesuffix(".weight")
        pack = pack_gptq if method == "gptq" else pack_awq
        if method == "awq" and tensor.shape[1] % group_size:
            raise ValueError(
                f"{name} has {tensor.shape[1]} columns, no whole groups of {group_size}, which "
                "AutoAWQ needs: --group-size"
            )
        codes, scales = _quantized(tensor.float(), group_size)
        for suffix, one in pack(codes, scales, group_size).items():
            tensors[f"{module}.{suffix}"] = one.contiguous()
    shutil.copytree(checkpoint, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["dtype"] = "float16"  # of the scales
    config["quantization_config"] = settings(method, group_size)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def settings(method: str, group_size: int) -> dict[str, Any]:
    if method == "awq":
        return {
            "quant_method": "awq",
            "bits": BITS,
            "group_size": group_size,
            "version": "gemm",
            "zero_point": True,
        }
    return {
        "quant_method": "gptq",
        "bits": BITS,
        "group_size": group_size,
        "desc_act": False,
        "sym": True,
        "checkpoint_format": "gptq",
    }


def _quantized(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Codes, int32 [n, k] from 0 to 15 around 8, and scales, float16 [n, groups].

    The last group has the columns that are left.
    """
    n, k = weight.shape
    groups = F.pad(weight, (0, -k % group_size)).view(n, -1, group_size)
    scales = (groups.abs().amax(2, keepdim=True) / 7).clamp(min=1e-6).half()
    codes = (groups / scales.float()).round().clamp(-8, 7).int() + 8
    return codes.view(n, -1)[:, :k], scales[..., 0]


def pack_gptq(codes: Tensor, scales: Tensor, group_size: int) -> dict[str, Tensor]:
    """AutoGPTQ's tensors, by suffix, of codes [n, k] around 8 and scales [n, groups]."""
    n, k = codes.shape
    zeros = torch.full((scales.shape[1], n), 7, dtype=torch.int32)  # 8, less the 1 of this format
    return {
        "qweight": _packed(codes.T.reshape(-1, _CODES_PER_INT, n).transpose(1, 2)),
        "qzeros": _packed(zeros.view(-1, n // _CODES_PER_INT, _CODES_PER_INT)),
        "scales": scales.T,
        "g_idx": (torch.arange(k) // group_size).int(),
    }


def pack_awq(codes: Tensor, scales: Tensor, group_size: int) -> dict[str, Tensor]:
    n = codes.shape[0]
    order = torch.tensor(_AWQ_ORDER)
    zeros = torch.full((scales.shape[1], n), 8, dtype=torch.int32)
    packed = [
        _packed(one.reshape(-1, n // _CODES_PER_INT, _CODES_PER_INT)[..., order])
        for one in (codes.T, zeros)
    ]
    return {"qweight": packed[0], "qzeros": packed[1], "scales": scales.T}


def _packed(codes: Tensor) -> Tensor:
    """int32 [..., rows]: the last axis of eight codes as one number, the first in the low bits."""
    shifts = torch.arange(_CODES_PER_INT) * BITS
    numbers = (codes.long() << shifts).sum(-1)
    return torch.where(numbers >= 2**31, numbers - 2**32, numbers).int()


if __name__ == "__main__":
    main()
