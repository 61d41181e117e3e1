"""Converted models whose matrices are codes: the same bits without decoding, or one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.cpu_kernels import NATIVE, kernels_of
from support.gguf_files.convert import write_gguf
from support.kv_scales import add_tensors
from support.models import load_step_model
from support.packing import bnb, tensorizer, torchao
from support.packing.checkpoints import PACKED_MODULES, Packed, quantized_copy, rounded
from support.packing.integers import pack_gptq
from support.paged import PagedRunner
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker.backends.cpu.conversion import convert_model
from taco_worker.backends.cpu.cpu_model import CpuModel
from taco_worker.models.converted.header import matrices_file, rest_file
from taco_worker.quant.formats import gptq
from taco_worker.quant.gguf.model_directory import model_directory
from taco_worker.startup_checks import check_kv_scales, check_memory, check_model

(IDS,) = token_sequences((24,))
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GPTQ = {"quant_method": "gptq", "bits": 4, "sym": True, "desc_act": False}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True}
Pack = Callable[[str, Tensor], Packed | None]


def by_gptq(bits: int = 4, group: int = 64, **own: Any) -> Pack:
    def pack(module: str, weight: Tensor) -> Packed:
        integers = rounded(weight, bits, group, seed=len(module), **own)
        return pack_gptq(integers), integers.values

    return pack


def mixed(module: str, weight: Tensor) -> Packed | None:
    """Rows of unlike codes, and of none, in one matrix."""
    if module.endswith(("v_proj", "up_proj")):
        return None
    return by_gptq(8 if module.endswith("k_proj") else 4)(module, weight)


def by_blocks(module: str, weight: Tensor) -> Packed:
    tensors = bnb.pack_4bit(weight, "nf4", nested=True)
    return tensors, bnb.unpack_4bit(tensors, *weight.shape)


def by_model_opt(elements: str, group: int, **own: Any) -> Pack:
    """torchao's tensors under ModelOpt's names."""
    names = {"qdata": ".weight", "scale": ".weight_scale", "per_tensor_scale": ".weight_scale_2"}

    def pack(module: str, weight: Tensor) -> Packed:
        packed = torchao.block_floats(weight, elements, group, **own)
        return {names[end]: part for end, part in packed.tensors.items()}, packed.values

    return pack


MODEL_OPT = {"quant_method": "modelopt", "ignore": ["lm_head"]}
MIXED = {r"+:.*\.k_proj": {"bits": 8}, r"-:.*\.v_proj": {}, r"-:.*\.up_proj": {}}
CASES: dict[str, tuple[str, dict[str, Any], Pack, dict[str, Any]]] = {
    "int8-activations": ("llama-2-like", SIZES, by_gptq(), {**GPTQ, "group_size": 64}),
    "short-groups": ("qwen2-like", SIZES, by_gptq(group=32), {**GPTQ, "group_size": 32}),
    "order-of-columns": (
        "llama-2-like",
        SIZES,
        by_gptq(symmetric=False, ordered_columns=True),
        {**GPTQ, "group_size": 64, "sym": False, "desc_act": True},
    ),
    "mixed": ("llama-2-like", SIZES, mixed, {**GPTQ, "group_size": 64, "dynamic": MIXED}),
    "experts": (
        "mixtral-8x7b-like",
        {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
        by_gptq(),
        {**GPTQ, "group_size": 64},
    ),
    "tables": ("llama-2-like", SIZES, by_blocks, NF4),
    "scales-of-two-levels": (
        "llama-2-like",
        SIZES,
        by_model_opt("float4_e2m1fn_x2", 16, tensor_scale=1e-3, kind="NVFP4Tensor"),
        {**MODEL_OPT, "quant_algo": "NVFP4"},
    ),
    "powers": (
        "llama-2-like",
        SIZES,
        by_model_opt("float8_e4m3fn", 32),
        {**MODEL_OPT, "quant_algo": "MXFP8"},
    ),
}


def make(folder: Path, case: str) -> Path:
    variant, sizes, pack, settings = CASES[case]
    dense = VARIANTS[variant].make(folder / "dense", **sizes)

    def pack_one(module: str, weight: Tensor) -> Packed | None:
        return pack(module, weight) if PACKED_MODULES.search(module) else None

    return quantized_copy(folder / "quantized", dense, pack_one, settings)


def convert(path: Path, out: Path, isa: str = NATIVE[-1], **choices: Any) -> Path:
    wanted = ModelConfig(model=str(path), **{"dtype": "bfloat16", **choices})
    convert_model(wanted, out, lambda: kernels_of(isa, 2))
    return out


def logits(path: Path, serves: str = "kernels", **choices: Any) -> Tensor:
    model = load_step_model(path, serves, **{"dtype": "bfloat16", **choices})
    assert isinstance(model, CpuModel)
    return PagedRunner(model).step({"a": IDS})["a"]


def converted_logits(out: Path, serves: str = "kernels", **choices: Any) -> Tensor:
    check_model(ModelConfig(model=str(out), load_format="sharded_state", **choices))
    return logits(out, serves, dtype="auto", load_format="sharded_state", **choices)


@pytest.mark.parametrize("isa", NATIVE)
@pytest.mark.parametrize("case", CASES)
def test_converted_codes_have_the_same_bits(tmp_path: Path, case: str, isa: str) -> None:
    path = make(tmp_path, case)
    out = convert(path, tmp_path / "out", isa)
    assert torch.equal(converted_logits(out, isa), logits(path, isa))


def test_files_of_llama_cpp(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {**SIZES, "hidden_size": 256, "intermediate_size": 256}
    source = VARIANTS["llama-2-like"].make(tmp_path / "hf", **sizes)
    file = write_gguf(source, tmp_path / "model.gguf", "Q4_K")
    path = model_directory(file, tmp_path / "cache")
    out = convert(path, tmp_path / "out")
    assert torch.equal(converted_logits(out), logits(path))


@pytest.mark.parametrize("method", ["fp8", "bitsandbytes"])
def test_codes_that_are_made_at_load(tmp_path: Path, method: str) -> None:
    path = VARIANTS["llama-2-like"].make(tmp_path / "dense", **SIZES)
    out = convert(path, tmp_path / "out", quantization=method)
    assert torch.equal(converted_logits(out), logits(path, quantization=method))
    assert torch.equal(converted_logits(out, quantization=method), converted_logits(out))


@pytest.mark.parametrize(
    "choices",
    [
        {"quantized_activations": "bfloat16"},
        {"quantized_activations": "int8"},
        {"quantize_lm_head": True},
    ],
)
def test_choices_of_the_conversion_hold(tmp_path: Path, choices: dict[str, Any]) -> None:
    path = make(tmp_path, "int8-activations")
    out = convert(path, tmp_path / "out", **choices)
    expected = logits(path, **choices)
    assert torch.equal(converted_logits(out), expected)
    assert torch.equal(converted_logits(out, **choices), expected)


def test_other_choices_are_refused_before_any_process(tmp_path: Path) -> None:
    out = convert(make(tmp_path, "int8-activations"), tmp_path / "out")
    with pytest.raises(ConfigurationError, match="quantized_activations auto, which is not 'bflo"):
        converted_logits(out, quantized_activations="bfloat16")
    with pytest.raises(ConfigurationError, match="were converted without quantize_lm_head"):
        converted_logits(out, quantize_lm_head=True)
    with pytest.raises(ValueError, match="for the dtype bfloat16, not float32"):
        logits(out, dtype="float32", load_format="sharded_state")


def test_activations_that_a_model_cannot_have_are_not_converted(tmp_path: Path) -> None:
    path, out = make(tmp_path, "int8-activations"), tmp_path / "out"
    for model, dtype, line in (
        (tmp_path / "dense", "bfloat16", "needs quantized weights, and the model has none"),
        (path, "float32", "needs dtype bfloat16: with float32 the weights are dequantized"),
        (make(tmp_path / "other", "tables"), "bfloat16", "do not multiply int8 activations"),
    ):
        with pytest.raises(ValueError, match=line):
            convert(model, out, dtype=dtype, quantized_activations="int8")
        assert not out.exists()


def test_weights_that_are_dequantized_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    convert(make(tmp_path, "int8-activations"), tmp_path / "out", dtype="float32")
    assert "the quantized weights are dequantized to float32" in caplog.text


@pytest.mark.parametrize("load_format", ["safetensors", "pt", "tensorizer"])
def test_scales_of_the_kv_cache_are_kept(tmp_path: Path, load_format: str) -> None:
    path = make(tmp_path, "int8-activations")
    add_tensors(path, {f"{i}.self_attn.{x}_scale": 0.01 + i / 50 for i in range(2) for x in "kv"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    (path / "config.json").write_text(json.dumps(config))
    source = path / "model.safetensors"
    expected = {one: tokens(path, kv_cache_dtype=one) for one in ("auto", "fp8", "bfloat16")}
    assert expected["auto"] == expected["fp8"]
    assert expected["bfloat16"][1] != expected["fp8"][1]
    if load_format == "pt":
        torch.save(load_file(source), path / "pytorch_model.bin")
        source.unlink()
    elif load_format == "tensorizer":
        tensorizer.write(path / "model.tensors", load_file(source))
        source.unlink()
    out = convert(path, tmp_path / "out", load_format=load_format)
    for kv_cache_dtype, tokens_and_layout in expected.items():
        choices: dict[str, Any] = {"kv_cache_dtype": kv_cache_dtype, "dtype": "auto"}
        assert tokens(out, load_format="sharded_state", **choices) == tokens_and_layout
        choices["dtype"] = "bfloat16"
        assert tokens(path, load_format=load_format, **choices) == tokens_and_layout


def tokens(path: Path, **choices: Any) -> tuple[list[int], str]:
    """Greedy tokens, and the layout of the KV cache, with its scales."""
    wanted = ModelConfig(model=str(path), load_format=choices.get("load_format", "auto"))
    config = WorkerConfig(model=wanted, kv_cache_dtype=choices["kv_cache_dtype"])
    check_kv_scales(config, check_model(wanted))
    model = load_step_model(path, "kernels", **{"dtype": "bfloat16", **choices})
    runner, ids, found = PagedRunner(model), list(IDS), []
    for _ in range(12):
        found.append(int(runner.step({"a": ids})["a"][-1].argmax()))
        ids = found[-1:]
    return found, model.kv_layout


@pytest.mark.parametrize("load_format", ["auto", "sharded_state"])
def test_a_method_is_refused_as_not_needed(tmp_path: Path, load_format: str) -> None:
    out = convert(make(tmp_path, "int8-activations"), tmp_path / "out")
    wanted = ModelConfig(model=str(out), load_format=load_format, quantization="gptq")
    message = "the model directory is converted and needs no --quantization"
    with pytest.raises(ConfigurationError, match=message):
        check_model(wanted)


def test_the_method_of_the_conversion_may_be_named(tmp_path: Path) -> None:
    out = convert(make(tmp_path, "int8-activations"), tmp_path / "out", quantization="gptq")
    assert torch.equal(converted_logits(out, quantization="gptq"), converted_logits(out))


def test_loading_reads_no_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = convert(make(tmp_path, "int8-activations"), tmp_path / "out")
    monkeypatch.setattr(gptq, "read", None)
    converted_logits(out)


def test_the_check_of_memory_counts_codes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = convert(make(tmp_path, "int8-activations"), tmp_path / "out")
    wanted = ModelConfig(model=str(out), load_format="sharded_state")
    config = WorkerConfig(model=wanted, device="cpu")
    size = matrices_file(out).stat().st_size
    memory = "taco_worker.startup_checks.available_cpu_memory"
    monkeypatch.setattr(memory, lambda: size)
    check_memory(config, check_model(wanted), 4)
    monkeypatch.setattr(memory, lambda: size - 1)
    with pytest.raises(ConfigurationError, match="the weights of each of 4 workers take"):
        check_memory(config, check_model(wanted), 4)


HEADER = "taco_weights.json"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layouts", None, "layouts is None"),
        ("layouts", [{"kind": "int4"}], "a layout is {'kind': 'int4'}"),
        ("codes", {"lm_head": [[16]]}, r"the codes of lm_head have the rows \[16\]"),
        ("codes", {"lm_head": [[0, -1]]}, r"the codes of lm_head have the rows \[0, -1\]"),
        ("codes", {"lm_head": [[16, 99]]}, "no layout has the number 99"),
        ("codes", {"lm_head": 3}, "the codes of lm_head are 3"),
        ("codes", {}, "other matrices multiply int8 activations"),
        ("stored", {"lm_head": [True]}, "no layout has the number True"),
        ("stored", {}, "the matrices of codes are others"),
        ("quantized_activations", None, "quantized_activations is 'None'"),
        ("int8_activations", [3], "int8_activations is"),
        ("quantize_lm_head", 1, "quantize_lm_head is '1'"),
    ],
)
def test_damaged_headers_are_one_line(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    out = convert(make(tmp_path, "int8-activations"), tmp_path / "out")
    fields = json.loads((out / HEADER).read_text())
    (out / HEADER).write_text(json.dumps(fields | {field: value}))
    with pytest.raises((ValueError, ConfigurationError), match=message) as error:
        converted_logits(out)
    assert "\n" not in str(error.value)


def test_any_change_of_a_layout_is_one_line_or_harmless(tmp_path: Path) -> None:
    out = convert(make(tmp_path, "order-of-columns"), tmp_path / "out")
    fields = json.loads((out / HEADER).read_text())
    refused = 0
    for number, layout in enumerate(fields["layouts"]):
        for name in layout:
            for value in (None, 0, 48, True, "F32", "table16", 2**40):
                changed = [dict(one) for one in fields["layouts"]]
                changed[number][name] = value
                (out / HEADER).write_text(json.dumps(fields | {"layouts": changed}))
                error = _error_of(out)
                assert "\n" not in error, (name, value)
                refused += bool(error)
    assert refused > 30


def _error_of(out: Path) -> str:
    try:
        converted_logits(out)
    except (ValueError, ConfigurationError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("groups", lambda groups: groups + 1000, "groups of columns are"),
        ("groups", lambda groups: groups - 1, "groups of columns are -1"),
        ("groups", lambda groups: groups[:8].clone(), "groups0 must be torch.int32"),
        ("groups", lambda _: None, "a matrix has .*, not"),
        ("table", lambda table: table / 0, "entries that are not finite"),
    ],
)
def test_damaged_columns_are_one_line(
    tmp_path: Path, part: str, change: Callable[[Tensor], Tensor | None], message: str
) -> None:
    case = {"groups": "order-of-columns", "table": "tables"}[part]
    out = convert(make(tmp_path, case), tmp_path / "out")
    tensors = load_file(rest_file(out))
    (name, *_) = [key for key in tensors if key.endswith(f":{part}0")]
    changed = change(tensors.pop(name))
    save_file(tensors if changed is None else tensors | {name: changed}, rest_file(out))
    with pytest.raises(
        ValueError, match=rf"cannot read .*taco_weights\.rest: .*{message}"
    ) as error:
        converted_logits(out)
    assert "\n" not in str(error.value)


def test_a_file_of_matrices_that_is_cut_off(tmp_path: Path) -> None:
    out = convert(make(tmp_path, "int8-activations"), tmp_path / "out")
    content = matrices_file(out).read_bytes()
    matrices_file(out).write_bytes(content[:-64])
    with pytest.raises(ConfigurationError, match=r"taco_weights\.matrices is damaged"):
        converted_logits(out)
