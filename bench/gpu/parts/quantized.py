"""Products with quantized codes at the sizes of Llama-3-8B, and steps of that model on codes.

A product's share is the bandwidth of its minimum bytes, relative to the measured copy bandwidth;
its error is relative to the product with the values of its codes in float64. Steps are those of the
part `worker`, with all matrices but the embeddings quantized from random numbers at load; the LM
head has 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from bench.gpu.harness.context import Context
from bench.gpu.harness.timing import time_calls
from bench.gpu.inputs.llama import LLAMA_3_8B, TINY, Shape, model_folder
from bench.gpu.parts.machine import Ceilings, load_ceilings
from bench.gpu.parts.worker import Sizes, WorkerBench
from taco_kernels.code_packing import pack
from taco_kernels.group_codes import GroupCodes
from taco_kernels.packed_codes import PackedCodes
from taco_kernels.triton.codes import multiply, scaled
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.backends.torch import plan_weights
from taco_worker.quant.int8_rows import int8_rows
from taco_worker.worker import Worker

Quantizer = Callable[[Tensor], GroupCodes]
Product = Callable[[Tensor, PackedCodes], Tensor]

_ROWS = (1, 2, 4, 8, 16, 32, 64, 512, 4096)
_TRIAL_ROWS = (1, 20)
_WORK_SECONDS = 1.0
_COMPARED = 1024
_MODEL_SECONDS = 35.0
_STEPS = Sizes((1, 16, 32), 1024, (), ((4096, 4096),), max_step_tokens=4096, steps=32)
_TRIAL_STEPS = Sizes((1, 2), 24, (), ((24, 24),), max_step_tokens=24, steps=3)
_NUM_BLOCKS, _TRIAL_BLOCKS = 3072, 64


def fp8_rows(rows: Tensor) -> GroupCodes:
    """8-bit floats with a scale for each row."""
    scales = rows.float().abs().amax(1, keepdim=True) / 448
    codes = (rows.float() / scales).to(torch.float8_e4m3fn).view(torch.uint8)
    return GroupCodes("e4m3", codes, rows.shape[1], scales)


def fp8_blocks(rows: Tensor) -> GroupCodes:
    """8-bit floats with a scale for each 128 columns."""
    codes, scales = _grouped(rows, 128, 448)
    return GroupCodes("e4m3", codes.to(torch.float8_e4m3fn).view(torch.uint8), 128, scales)


def symmetric_4_bits(rows: Tensor) -> GroupCodes:
    """4-bit codes with a zero of 8, and a scale for each 128 columns."""
    codes, scales = _grouped(rows, 128, 7)
    zeros = torch.full(scales.shape, 8, dtype=torch.int16, device=rows.device)
    return GroupCodes("int4", codes.round_().add_(8).byte(), 128, scales, zeros=zeros)


def zeros_4_bits(rows: Tensor) -> GroupCodes:
    """4-bit codes with a scale and a zero for each 128 columns."""
    codes = symmetric_4_bits(rows)
    zeros = torch.randint_like(codes.scales, 0, 16).short()
    return GroupCodes("int4", codes.codes, 128, codes.scales, zeros=zeros)


def minima_4_bits(rows: Tensor) -> GroupCodes:
    """4-bit codes with a scale and a minimum for each 32 columns, as Q4_K has."""
    codes, scales = _grouped(rows, 32, 7)
    return GroupCodes("int4", codes.round_().add_(8).byte(), 32, scales, minima=8 * scales)


def _grouped(rows: Tensor, group: int, greatest: int) -> tuple[Tensor, Tensor]:
    """Numbers up to `greatest`, float32, and the scales of groups."""
    groups = rows.float().unflatten(1, (-1, min(group, rows.shape[1])))
    scales = groups.abs().amax(2).half().float() / greatest
    scales = scales.half().float().clamp(min=1e-6)
    numbers = (groups / scales[..., None]).clamp(-greatest, greatest)
    return numbers.flatten(1), scales


FORMATS: Mapping[str, Quantizer] = {
    "fp8": fp8_rows,
    "fp8 blocks": fp8_blocks,
    "int8": int8_rows,
    "4-bit g128": symmetric_4_bits,
    "4-bit g128 zeros": zeros_4_bits,
    "4-bit g32 minima": minima_4_bits,
}
# Of the steps of a whole model; None: its numbers in bfloat16.
MODELS: Mapping[str, Quantizer | None] = {
    "bf16": None,
    "fp8": fp8_rows,
    "4-bit g128": symmetric_4_bits,
    "4-bit g32 minima": minima_4_bits,
}


def measure(context: Context) -> None:
    ceilings = load_ceilings(context)  # measured first, because a worker leaves no memory for it
    for name, quantize in MODELS.items():
        if context.report.has_time(f"{name}: steps", _MODEL_SECONDS):
            _measure_steps(context, ceilings, name, quantize)
    for name, quantizer in FORMATS.items():
        try:
            _measure_products(context, ceilings, name, quantizer)
        except Exception as error:  # for example a compile error; other formats continue
            context.report.leave_out(name, error)


def _measure_steps(
    context: Context, ceilings: Ceilings, name: str, quantize: Quantizer | None
) -> None:
    config, sizes = (LLAMA_3_8B, _STEPS) if context.is_real else (TINY, _TRIAL_STEPS)

    def quantized(rows: Tensor) -> GroupCodes:
        is_head = rows.shape[0] == config["vocab_size"]
        return int8_rows(rows) if is_head or quantize is None else quantize(rows)

    # Weights are made and quantized by the worker, as int8 ones are.
    with model_folder(config) as folder, patch.object(plan_weights, "int8_rows", quantized):
        model = ModelConfig(
            model=folder, load_format="dummy", quantization=None if quantize is None else "int8"
        )
        worker = Worker(
            WorkerConfig(
                model=model,
                device=context.device.type,
                max_num_seqs=max(sizes.batches),
                max_num_batched_tokens=sizes.max_step_tokens,
                num_blocks=_NUM_BLOCKS if context.is_real else _TRIAL_BLOCKS,
            )
        )
    shape = Shape.of(config)
    weight_bytes = shape.weight_bytes * (1.0 if quantize is None else _share_of_bytes(quantize))

    def floor_ms(batch: int, tokens: int) -> float:
        num_bytes = weight_bytes + batch * tokens * shape.kv_bytes_per_token
        return num_bytes / ceilings.copy_gb_per_s / 1e6

    WorkerBench(context, worker, floor_ms, sizes, label=f"{name}: ").measure_decodes()


def _share_of_bytes(quantize: Quantizer) -> float:
    """Bytes of packed codes, relative to numbers of 2 bytes."""
    rows = torch.randn(64, 4096)
    return _bytes(pack(quantize(rows))) / (2 * rows.numel())


def _measure_products(context: Context, ceilings: Ceilings, name: str, quantize: Quantizer) -> None:
    hidden, inner = (4096, 14336) if context.is_real else (128, 256)
    matrices = {
        "qkv": (hidden * 3 // 2, hidden),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    for matrix, (n, k) in matrices.items():
        weights = [
            pack(quantize(torch.randn(n, k, device=context.device) / k**0.5))
            for _ in range(context.num_sets(n * k // 2))
        ]
        for rows in _ROWS if context.is_real else _TRIAL_ROWS:
            x = torch.randn(rows, k, device=context.device, dtype=context.dtype)
            products: dict[str, Product] = {"": multiply.multiply_codes}
            if scaled.multiplies_fp8(context.device) and scaled.can_scale(x, weights[0]):
                products["torch, "] = scaled.multiply_scaled
            for way, product in products.items():
                case = f"{way}{name} {matrix}, {rows} rows"
                if not context.report.has_time(case, _WORK_SECONDS):
                    continue
                timing = time_calls([partial(product, x, one) for one in weights], context.device)
                num_bytes = _bytes(weights[0]) + x.element_size() * rows * (n + k)
                share = num_bytes / ceilings.copy_gb_per_s / 1e3 / timing.us
                error = _error(product, x, weights[0])
                line = timing.record() | {
                    "share": round(share, 3),
                    "error": round(error, 6),
                    "right": error <= (0.05 if way else 0.005),
                }
                text = f"{timing.us:9.1f} us {share:6.1%}, error {error:.1e}"
                context.report.add(case, line, text)


def _error(product: Product, x: Tensor, weight: PackedCodes) -> float:
    """Of some outputs, relative to those of the values in float64."""
    last = min(weight.n, _COMPARED)
    wanted = x.double() @ weight.values(0, last).double().T
    found = product(x, weight)[:, :last].double()
    return float((found - wanted).norm() / wanted.norm())


def _bytes(weight: PackedCodes) -> int:
    sizes: list[int] = []

    def note(_: str, tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    weight.map_tensors(note)
    return sum(sizes)
