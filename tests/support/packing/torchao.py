"""Writes weights as torchao 0.18's safetensors files hold them, from the published layouts.

Sources: torchao's `quantization/quantize_/workflows` and `prototype/safetensors`, FBGEMM's
`int4_row_quantize_zp` and `pack_int4`, torch's `native/cuda/int4mm.cu`. NumPy, number by number.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass
class Packed:
    """The tensors of a weight by suffix, its class with attributes, and its numbers."""

    kind: str
    data: dict[str, Any]
    tensors: dict[str, Tensor]
    values: Tensor

    def named(self, name: str) -> dict[str, Tensor]:
        return {f"{name}._weight_{end}": tensor for end, tensor in self.tensors.items()}


def save(
    folder: Path, weights: Mapping[str, Packed | Tensor], file: str = "model.safetensors"
) -> Path:
    """Write weights by the names of their modules, and other tensors by their own."""
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {"format": "pt"}
    names = []
    for name, weight in weights.items():
        if isinstance(weight, Packed):
            tensors |= weight.named(name)
            name = f"{name}.weight"
            fields = {
                "_type": weight.kind,
                "_data": weight.data,
                "_tensor_data_names": list(weight.tensors),
            }
            metadata[name] = json.dumps(fields)
        else:
            tensors[name] = weight
            metadata[name] = json.dumps({"_type": "Tensor"})
        names.append(name)
    metadata["tensor_names"] = json.dumps(names)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / file, metadata)
    return folder


def integers(weight: Tensor, rows: int, columns: int, *, kind: str = "Int8Tensor") -> Packed:
    """`Int8Tensor` (symmetric), or `IntxUnpackedToInt8Tensor` of 4 bits with zero points."""
    n, k = weight.shape
    low, high = (-128, 127) if kind == "Int8Tensor" else (-8, 7)
    codes = np.zeros((n, k), np.int8)
    scales = np.zeros((n // rows, k // columns), np.float32)
    zeros = np.zeros_like(scales, np.int8)
    values = np.zeros((n, k), np.float32)
    numbers = weight.float().numpy()
    for i in range(n // rows):
        for j in range(k // columns):
            place = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            block = numbers[place]
            if kind == "Int8Tensor":
                scales[i, j] = np.abs(block).max() / np.float32(127.5)
            else:
                scales[i, j] = _bfloat16((block.max() - block.min()) / 15)
                zeros[i, j] = np.clip(low - np.round(block.min() / scales[i, j]), low, high)
            codes[place] = np.clip(np.round(block / scales[i, j]) + zeros[i, j], low, high)
            values[place] = (codes[place].astype(np.float32) - zeros[i, j]) * scales[i, j]
    data = {"block_size": [rows, columns], "dtype": {"_type": "torch.dtype", "_data": "bfloat16"}}
    scale_dtype = torch.float32 if kind == "Int8Tensor" else torch.bfloat16
    tensors = {
        "qdata": torch.from_numpy(codes),
        "scale": torch.from_numpy(scales).to(scale_dtype),
        "zero_point": torch.from_numpy(zeros),
    }
    return Packed(kind, data, tensors, torch.from_numpy(values))


def plain_int4(weight: Tensor, group: int) -> Packed:
    """`Int4Tensor`: signed codes, the even column in a byte's low bits; scales are transposed."""
    codes, scales, zeros = _asymmetric(weight, group)
    n, k = weight.shape
    packed = np.zeros((n, k // 2), np.uint8)
    for j in range(k):
        packed[:, j // 2] |= ((codes[:, j] - 8) & 15).astype(np.uint8) << (4 * (j % 2))
    tensors = {
        "qdata": torch.from_numpy(packed.view(np.int8)),
        "scale": torch.from_numpy(scales).T.bfloat16(),
        "zero_point": torch.from_numpy(zeros).T.bfloat16(),
    }
    data = {"block_size": [1, group], "shape": [n, k]}
    return Packed("Int4Tensor", data, tensors, _affine(codes, scales, zeros, group))


def tiled_int4(weight: Tensor, group: int, inner_tiles: int = 8) -> Packed:
    """`Int4TilePackedTo4dTensor`: padded to 8 rows and 1,024 columns, in tensor core order."""
    n, k = weight.shape
    padded_n, padded_k = -(-n // 8) * 8, -(-k // 1024) * 1024
    padded = torch.zeros(padded_n, padded_k)
    padded[:n, :k] = weight.float()
    codes, scales, zeros = _asymmetric(padded, group)
    words = np.zeros(
        (padded_n // 8, padded_k // (inner_tiles * 16), 32, inner_tiles // 2), np.uint32
    )
    for row_tile, outer, lane, word in np.ndindex(*words.shape):
        row = codes[row_tile * 8 + lane // 4]
        first = (outer * inner_tiles + word * 2) * 16 + (lane % 4) * 2
        columns = [first, first + 1, first + 8, first + 9]
        columns += [column + 16 for column in columns]
        nibbles = [row[column] for column in columns]
        for place, number in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            words[row_tile, outer, lane, word] |= np.uint32(nibbles[number]) << np.uint32(4 * place)
    both = torch.stack((torch.from_numpy(scales).T, torch.from_numpy(zeros).T), dim=-1)
    tensors = {
        "qdata": torch.from_numpy(words.view(np.int32)),
        "scale_and_zero": both.bfloat16(),
    }
    data = {"block_size": [1, group], "shape": [n, k]}
    values = _affine(codes, scales, zeros, group)[:n, :k]
    return Packed("Int4TilePackedTo4dTensor", data, tensors, values)


def float8(weight: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Packed:
    n, k = weight.shape
    blocks = weight.float().view(n // rows, rows, k // columns, columns)
    scales = blocks.abs().amax((1, 3)) / torch.finfo(dtype).max
    codes = (blocks / scales[:, None, :, None]).to(dtype)
    values = (codes.float() * scales[:, None, :, None]).view(n, k)
    tensors = {"qdata": codes.view(n, k), "scale": scales}
    return Packed("Float8Tensor", {"block_size": [rows, columns]}, tensors, values)


# Of elements of blocks: bits of exponent and mantissa, without a sign.
_FORMS = {"float4_e2m1fn_x2": (2, 1), "fp6_e2m3": (2, 3), "fp6_e3m2": (3, 2)}


def block_floats(
    weight: Tensor,
    elements: str,
    group: int = 32,
    *,
    swizzled: bool = False,
    tensor_scale: float | None = None,
    kind: str = "MXTensor",
) -> Packed:
    """`MXTensor`, or `NVFP4Tensor` with E4M3 scales and, if any, one of the whole tensor."""
    n, k = weight.shape
    groups = weight.float().view(n, k // group, group)
    is_mx = kind == "MXTensor"
    whole = 1.0 if tensor_scale is None else float(np.float32(tensor_scale))
    wanted = groups.abs().amax(-1).clamp(min=1e-20)
    if is_mx:
        scales = (wanted.log2().floor() - 2).exp2()
        stored = (scales.log2() + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
    else:
        stored = (wanted / 6 / whole).clamp(2**-6, 448).to(torch.float8_e4m3fn)
        scales = stored.float() * torch.tensor(whole)
    qdata, numbers = _elements(groups / scales[..., None], elements)
    tensors = {"qdata": qdata, "scale": _tiles(stored) if swizzled else stored}
    data: dict[str, Any] = {"block_size": group, "is_swizzled_scales": swizzled}
    if is_mx:
        is_dtype = hasattr(torch, elements)
        data["elem_dtype"] = {"_type": "torch.dtype", "_data": elements} if is_dtype else elements
    if tensor_scale is not None:
        tensors["per_tensor_scale"] = torch.tensor(whole)
    return Packed(kind, data, tensors, (numbers * scales[..., None]).view(n, k))


def _elements(wanted: Tensor, elements: str) -> tuple[Tensor, Tensor]:
    """The stored elements [n, k], and their numbers in the shape of `wanted`."""
    n = wanted.shape[0]
    if elements not in _FORMS:
        dtype = getattr(torch, elements)
        floats = wanted.clamp(-448, 448).to(dtype)
        return floats.reshape(n, -1), floats.float()
    exponent_bits, mantissa_bits = _FORMS[elements]
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    table = []
    for code in range(2 ** (exponent_bits + mantissa_bits)):
        exponent, mantissa = divmod(code, steps)
        fraction = mantissa / steps
        is_normal = exponent > 0
        table.append((fraction + is_normal) * 2.0 ** (max(exponent, 1) - bias))
    numbers = torch.tensor(table)
    codes = (wanted.abs()[..., None] - numbers).abs().argmin(-1)
    signed = numbers[codes] * wanted.sign().where(wanted != 0, 1)
    codes += (wanted < 0) * len(table)
    flat = codes.reshape(n, -1).to(torch.uint8)
    return (flat[:, ::2] | flat[:, 1::2] << 4) if len(table) == 8 else flat, signed


def _tiles(scales: Tensor) -> Tensor:
    """Scales in tiles of 128 rows by 4 groups, padded with zeros; cuBLAS' formula of an offset."""
    rows, groups = scales.shape
    across, down = -(-groups // 4), -(-rows // 128)
    flat = torch.zeros(down * across * 512, dtype=torch.uint8)
    for i, j in np.ndindex(rows, groups):
        tile = (i // 128) * across + j // 4
        offset = (i % 32) * 16 + (i % 128) // 32 * 4 + j % 4
        flat[tile * 512 + offset] = scales.view(torch.uint8)[i, j]
    return flat.view(down * 32, across * 16).view(scales.dtype)


def _asymmetric(weight: Tensor, group: int) -> tuple[Any, Any, Any]:
    """Codes from 0 to 15 [n, k], and scales and zeros (the value of code 8) [n, groups]."""
    n, k = weight.shape
    groups = weight.float().numpy().reshape(n, k // group, group)
    low, high = groups.min(-1), groups.max(-1)
    scales = _bfloat16(np.maximum(high - low, np.float32(1e-6)) / np.float32(15))
    codes = np.clip(np.round((groups - low[..., None]) / scales[..., None]), 0, 15)
    zeros = _bfloat16(low + scales * 8)
    return codes.reshape(n, k).astype(np.int64), scales, zeros


def _affine(codes: Any, scales: Any, zeros: Any, group: int) -> Tensor:
    """float64: `(code - 8) * scale + zero`, exactly."""
    wide = [np.repeat(part.astype(np.float64), group, axis=1) for part in (scales, zeros)]
    return torch.from_numpy((codes - 8.0) * wide[0] + wide[1])


def _bfloat16(numbers: Any) -> Any:
    rounded = torch.from_numpy(np.asarray(numbers, np.float32)).bfloat16().float()
    return rounded.numpy()
