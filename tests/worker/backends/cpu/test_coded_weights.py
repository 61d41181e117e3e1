"""Weights that are kept as codes compute the bits of their decoded values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.checkpoints import make_checkpoint
from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from support.group_codes import random_codes
from support.paged import PagedRunner
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.coded_part import layout_of
from taco_kernels.group_codes import CodeKind, GroupCodes
from taco_kernels.kv_format import KVFormat
from taco_worker.backends.cpu.cpu_model import CpuModel
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.models.code_segments import CodeSegment
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan.model_plan import ModelPlan

TOKENS = torch.randint(384, (45,), generator=torch.Generator().manual_seed(0)).tolist()
# Rows that have codes, their kind, and what offsets their groups have.
Rows = tuple[int, CodeKind | None, str]
ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {"architecture": "LlamaForCausalLM", "tie_word_embeddings": True},
    "mixtral": {"architecture": "MixtralForCausalLM"},
    "sums of two segments": {
        "architecture": "LlamaForCausalLM",
        "intermediate_size": 896,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 112,
    },
}


def rows_of(name: str, count: int) -> list[Rows]:
    """Each kind of matrix has its own codes, and those of one are unlike."""
    if "qkv" in name:
        first = count // 2 // 16 * 16
        return [(first, "int4", "zeros"), (16, None, "none"), (count - first - 16, "int8", "none")]
    if "gate_up" in name:
        return [(count // 2, "int4", "none"), (count // 2, "e4m3", "none")]
    return [(count, "table16" if "down" in name else "int4", "none")]


class Filler:
    """Fills weights with random numbers, of which those of matrices are codes."""

    def __init__(self, plan: ModelPlan) -> None:
        self._plan = plan
        random = torch.Generator().manual_seed(0)
        self._rest: dict[str, torch.Tensor] = {}
        self._codes: dict[str, list[list[tuple[int, GroupCodes | torch.Tensor]]]] = {}
        for name, parameter in plan.parameters.items():
            if len(parameter.shape) == 1 or "router" in name:
                size = torch.randn(parameter.shape, generator=random)
                self._rest[name] = size * 0.1 + (1 if "norm" in name else 0)
                continue
            *_, n, k = parameter.shape
            self._codes[name] = []
            for expert in range(parameter.num_experts or 1):
                start, parts = 0, []
                for count, kind, offset in rows_of(name, n):
                    part: GroupCodes | torch.Tensor
                    if kind is None:
                        part = torch.randn(count, k, generator=random).bfloat16() * 0.05
                    else:
                        part = random_codes(count, k, kind, 32, offset=offset, seed=expert)
                        part = _scaled(part, 0.1)
                    parts.append((start, part))
                    start += count
                self._codes[name].append(parts)

    def segments(self) -> Mapping[str, Sequence[CodeSegment]]:
        return {
            name: [
                CodeSegment(start, part.shape[0], None)
                if isinstance(part, torch.Tensor)
                else CodeSegment(start, part.shape[0], layout_of(part))
                for start, part in experts[0]
            ]
            for name, experts in self._codes.items()
        }

    def fill(self, weights: CpuWeights) -> None:
        for name, values in self._rest.items():
            weights.put(name, 0, values, None)
        for name, experts in self._codes.items():
            for expert, parts in enumerate(experts):
                index = None if self._plan.parameters[name].num_experts is None else expert
                if weights.takes_codes(name):
                    for start, part in parts:
                        if isinstance(part, torch.Tensor):
                            weights.put(name, start, part, index)
                        else:
                            weights.put_codes(name, start, part, index)
                else:
                    rows = [
                        part if isinstance(part, torch.Tensor) else part.values()
                        for _, part in parts
                    ]
                    weights.put(name, 0, torch.cat(rows).bfloat16(), index)


def _scaled(codes: GroupCodes, std: float) -> GroupCodes:
    """The codes with scales that give values of about this standard deviation."""
    return replace(codes, scales=codes.scales * (std / codes.values().std()))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
def test_codes_compute_the_bits_of_their_values(
    isa: str, architecture: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, **ARCHITECTURES[architecture])  # type: ignore[arg-type]
    plan, kernels = load_hf_config(tmp_path).plan, kernels_of(isa, 2)
    filler = Filler(plan)
    coded = CpuWeights(
        plan,
        kernels,
        dtype=torch.bfloat16,
        quantization=None,
        codes=filler.segments(),
        activations="bfloat16",
    )
    plain = CpuWeights(plan, kernels, dtype=torch.bfloat16, quantization=None)
    logits = []
    for weights in (coded, plain):
        filler.fill(weights)
        model = CpuModel(plan, kernels, weights, kv_format=KVFormat(torch.bfloat16))
        logits.append(PagedRunner(model).step({"a": TOKENS})["a"])

    assert torch.isfinite(logits[0]).all()
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(coded.embed(torch.tensor(TOKENS)), plain.embed(torch.tensor(TOKENS)))
    assert coded.nbytes < 0.7 * plain.nbytes
    assert any(isinstance(matrix, CodedMatrix) for matrix in coded.matrices.values())


def test_float32_and_int8_products_take_values(tmp_path: Path) -> None:
    plan = load_hf_config(make_checkpoint(tmp_path)).plan
    filler, kernels = Filler(plan), kernels_of(NATIVE[-1], 1)
    for dtype, quantization in ((torch.float32, None), (torch.bfloat16, "int8")):
        weights = CpuWeights(
            plan, kernels, dtype=dtype, quantization=quantization, codes=filler.segments()
        )
        assert not any(map(weights.takes_codes, plan.parameters))


def test_a_segment_inside_a_panel_is_decoded(tmp_path: Path) -> None:
    plan = load_hf_config(make_checkpoint(tmp_path)).plan
    name = "layers.0.attn.qkv_proj.weight"
    n, k = plan.parameters[name].shape
    layout = layout_of(random_codes(n, k, "int4", 32))
    for first, takes in ((16, True), (20, False)):
        rows = [CodeSegment(0, first, layout), CodeSegment(first, n - first, None)]
        weights = CpuWeights(
            plan,
            kernels_of(NATIVE[-1], 1),
            dtype=torch.bfloat16,
            quantization=None,
            codes={name: rows},
        )
        assert weights.takes_codes(name) == takes
