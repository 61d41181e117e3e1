"""What a draft model's weights are: int8 by default, unless the checkpoint says more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from support.architectures.variants import VARIANTS
from support.checkpoints import make_checkpoint
from support.cpu_kernels import NATIVE, kernels_of
from support.packing.checkpoints import PACKED_MODULES, Packed, quantized_copy, rounded
from support.packing.integers import pack_gptq
from taco_draft.model_loading import load_draft_model
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.replica_args import ReplicaArgs
from taco_llm.supervisor.preflight import check_before_start
from taco_proto.config import DrafterConfig, ModelConfig
from taco_proto.errors import ConfigurationError
from taco_worker.backends.cpu.conversion import convert_model

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False}


def _pack(module: str, weight: Tensor) -> Packed | None:
    if not PACKED_MODULES.search(module):
        return None
    integers = rounded(weight, group=64)
    return pack_gptq(integers), integers.values


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coded")
    source = VARIANTS["llama-2-like"].make(folder / "dense", hidden_size=192, intermediate_size=192)
    return quantized_copy(folder / "gptq", source, _pack, GPTQ)


def weights_of(path: Path, quantization: str | None, load_format: str = "auto") -> str:
    """The formats of weights and activations, after the instruction set and the threads."""
    model = ModelConfig(model=str(path), quantization=quantization, load_format=load_format)
    if load_format == "auto":
        model = replace(model, dtype="bfloat16")
    loaded = load_draft_model(DrafterConfig(model=model, num_threads=1, num_blocks=4))
    return loaded.model.description.split(", ", 2)[2]


def test_an_unquantized_checkpoint(dense: Path) -> None:
    assert weights_of(dense, None) == weights_of(dense, "int8") == "int8"
    assert weights_of(dense, "none") == "bfloat16"
    assert weights_of(dense, "fp8").startswith("bfloat16, e4m3 codes")


def test_a_quantized_checkpoint_keeps_its_codes(coded: Path) -> None:
    for same in (None, "none", "gptq"):
        assert weights_of(coded, same) == "bfloat16, int4 codes, int8 activations"
    assert weights_of(coded, "int8") == "int8"


def test_converted_weights_keep_what_was_chosen(coded: Path, dense: Path, tmp_path: Path) -> None:
    kernels = kernels_of(NATIVE[-1], 1)
    convert_model(
        ModelConfig(model=str(coded), dtype="bfloat16"), tmp_path / "coded", lambda: kernels
    )
    convert_model(
        ModelConfig(model=str(dense), dtype="bfloat16"), tmp_path / "dense", lambda: kernels
    )
    of_codes = weights_of(tmp_path / "coded", None, "auto")
    assert of_codes == "bfloat16, int4 codes, int8 activations"
    assert weights_of(tmp_path / "dense", "none", "auto") == "bfloat16"


@pytest.mark.parametrize("quantization", [None, "none", "int8"])
def test_serve_takes_the_names(quantization: str | None) -> None:
    engine = EngineArgs(
        model="demo",
        speculative_model="demo-draft",
        speculative_model_quantization=quantization,
    )
    check_before_start(engine, ReplicaArgs())


def test_serve_rejects_what_the_draft_checkpoint_contradicts(coded: Path) -> None:
    engine = EngineArgs(
        model="demo", speculative_model=str(coded), speculative_model_quantization="awq"
    )
    with pytest.raises(
        ConfigurationError, match=r"the speculative model .*quantized \(gptq\), which is not 'awq'"
    ):
        check_before_start(engine, ReplicaArgs())
