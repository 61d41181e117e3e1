"""`taco_llm plan` lists what a model computes, from its config.json alone."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from support.checkpoints import make_checkpoint
from support.cpu_kernels import NATIVE, kernels_of
from support.eagle_reference import CONFIGS, DRAFT_VOCAB, HIDDEN, VOCAB, eagle_shapes
from support.heads import random_tensors, write_heads
from support.models import load_step_model
from support.packing.checkpoints import PACKED_MODULES, Packed, quantized_copy, rounded
from support.packing.integers import pack_gptq
from taco_llm.cli.main import main
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.models.code_segments import code_segments
from taco_worker.models.config import load_hf_config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=3)
    (path / "model.safetensors").unlink()
    return path


def test_a_plan_is_listed_before_and_after_lowering(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(checkpoint)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("LlamaForCausalLM: 3 layers, ")
    assert "KV cache: 192 numbers per token, 384 bytes in bf16" in lines
    assert "rope table rope: 16 columns, theta 10,000.0, scaling none, growth none" in lines
    assert "layers 0 to 2, each" in lines
    (activation,) = (line for line in lines if line.startswith("  Activation"))
    assert "up[0:224] -> inner[0:112]" in activation
    assert "kind=silu; gated=True" in activation
    lowered = lines[lines.index("after lowering for the CPU kernels, matrices in bf16") :]
    fused = [line for line in lowered if line.endswith("gate_up_proj.weight; gate_mul; silu")]
    assert len(fused) == 3
    assert sum(line.endswith("the whole step") for line in lowered) == 3 * 2 + 2


def test_the_scaling_of_positions_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rope = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    path = make_checkpoint(tmp_path / "model", rope_parameters=rope)
    assert main(["plan", str(path)]) == 0
    (line,) = (one for one in capsys.readouterr().out.splitlines() if "rope table" in one)
    assert line.endswith("theta 500.0, scaling LinearScaling(factor=4.0), growth none")


def test_long_columns_are_followed_by_a_space(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    sizes = {"hidden_size": 98304, "head_dim": 24576, "intermediate_size": 100000}
    (tmp_path / "config.json").write_text(json.dumps({**config, **sizes}))
    assert main(["plan", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.startswith("  ") and " -> " in line]
    assert max(line.index(" -> ") for line in rows) > 56
    assert not re.search(r" -> (-|\S+:\d+\])\S", text.replace("],", "] "))


def test_flags_change_the_config_as_they_do_for_serve(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaling = '{"rope_type": "linear", "factor": 4.0}'
    flags = ["--rope-scaling", scaling, "--rope-theta=500", "--config-format=hf"]
    overrides = ["--hf-overrides", '{"num_hidden_layers": 2}', "--disable-sliding-window"]
    assert main(["plan", str(checkpoint), *flags, *overrides]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("LlamaForCausalLM: 2 layers, ")
    assert "longest sequence: 2,048 tokens" in lines
    (table,) = (one for one in lines if "rope table" in one)
    assert table.endswith("theta 500.0, scaling LinearScaling(factor=4.0), growth none")


def test_the_flags_of_the_config_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    shown = re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE)
    assert {"--matrices", "--config-format", "--hf-overrides", "--rope-scaling"} < {*shown}


@pytest.mark.parametrize(
    ("kind", "names"),
    [("eagle", ["Eagle"]), ("eagle3", ["Eagle3Features", "Eagle3", "Eagle3Logits"])],
)
def test_the_plans_of_eagle(
    kind: str, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_heads(tmp_path, CONFIGS[kind], random_tensors(eagle_shapes(kind)), "model.safetensors")
    assert main(["plan", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^(\w+): \d+ layers?, ", text, re.MULTILINE) == names
    assert text.count("layers.0.attn.kv_proj.weight") == 2  # before and after lowering
    assert (f"lm_head.weight [{DRAFT_VOCAB}, {HIDDEN}]" in text) is (kind == "eagle3")


@pytest.mark.parametrize("has_lm_heads", [True, False])
def test_equal_medusa_heads_are_listed_once(
    has_lm_heads: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(3):
        shapes |= {f"{head}.0.linear.weight": (HIDDEN, HIDDEN), f"{head}.0.linear.bias": (HIDDEN,)}
        shapes |= {f"{head}.1.weight": (VOCAB, HIDDEN)} if has_lm_heads else {}
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1, "original_lm_head": not has_lm_heads}
    write_heads(tmp_path, config, random_tensors(shapes), "medusa_lm_head.safetensors")
    assert main(["plan", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    num_elements = HIDDEN * HIDDEN + HIDDEN + (VOCAB * HIDDEN if has_lm_heads else 0)
    assert text.startswith(f"3 times Medusa: 1 layer, {num_elements:,} parameters\n")
    assert text.count("Medusa") == 1
    assert (f"[{VOCAB}, {HIDDEN}]" in text) is has_lm_heads


@pytest.mark.parametrize(
    ("config", "flags", "message"),
    [
        (CONFIGS["eagle"], ["--rope-theta=1"], "--rope-theta do not apply to them"),
        ({"medusa_num_heads": 2}, [], "the weights have no tensor 0.0.linear.weight"),
        ({**CONFIGS["eagle"], "hidden_size": None}, [], "hidden_size must be a positive integer"),
        ({"draft_vocab_size": 3}, [], "config.json has no 'hidden_size'"),
    ],
)
def test_bad_heads_give_one_line(
    config: dict[str, object],
    flags: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_heads(tmp_path, config, random_tensors(eagle_shapes("eagle")), "model.safetensors")
    assert main(["plan", str(tmp_path), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_int8_matrices_take_half_the_bytes(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = []
    for kind in ("bf16", "i8"):
        assert main(["plan", str(checkpoint), "--matrices", kind]) == 0
        (line,) = (one for one in capsys.readouterr().out.splitlines() if "weights: " in one)
        numbers.append(int(line.split()[1].replace(",", "")))
    norms = 4 * 64 * 7
    assert numbers[0] - norms == 2 * (numbers[1] - norms)


def test_the_memory_of_codes_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU it is that of loaded weights, and on a GPU no less."""
    path = make_checkpoint(tmp_path / "dense", num_hidden_layers=3)
    packed = quantized_copy(
        tmp_path / "packed",
        path,
        lambda name, weight: _gptq(weight) if PACKED_MODULES.search(f".{name}") else None,
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    )
    assert main(["plan", str(packed)]) == 0
    _, _, codes, *_ = capsys.readouterr().out.splitlines()
    found = re.fullmatch(
        r"codes \(gptq\): at most ([\d,]+) bytes on a CPU, ([\d,]+) on a GPU",
        codes,
    )
    assert found is not None
    on_cpu, on_gpu = (int(one.replace(",", "")) for one in found.groups())
    config = load_hf_config(packed)
    weights = CpuWeights(
        config.plan,
        kernels_of(NATIVE[-1], num_threads=1),
        dtype=torch.bfloat16,
        quantization=None,
        codes=code_segments(config.plan, config.quantization, None),
    )
    plan = config.plan
    others = sum(math.prod(one.shape) * 4 for one in plan.parameters.values() if len(one.shape) < 2)
    table = math.prod(plan.parameters[plan.embedding_table].shape) * 2
    tables = 0 if plan.has_tied_head else table
    assert on_cpu == weights.memory.nbytes + others + tables
    model = load_step_model(packed, "torch", dtype="bfloat16")
    assert isinstance(model, TorchModel)
    kept = sum(parameter.nbytes for parameter in model.network.parameters())
    assert kept <= on_gpu <= 3 * kept  # small matrices are mostly padding

    assert main(["plan", str(packed), "--matrices=f32"]) == 0
    assert "codes" not in capsys.readouterr().out


def _gptq(weight: torch.Tensor) -> Packed:
    integers = rounded(weight)
    return pack_gptq(integers), integers.values


@pytest.mark.parametrize(
    "argument",
    [
        *("missing/model/of/none", "--matrices=int3", "--config-format=gguf"),
        *("--rope-scaling=linear", "--rope-theta=0", "--hf-overrides=[1]"),
    ],
)
def test_bad_arguments_give_one_line(
    checkpoint: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [argument] if not argument.startswith("-") else [str(checkpoint), argument]
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["plan", *arguments]))
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
