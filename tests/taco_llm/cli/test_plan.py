"""`taco_llm plan` lists what a model computes, from its config.json alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint
from taco_llm.cli.main import main


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


@pytest.mark.parametrize("argument", ["missing/model/of/none", "--matrices=int3"])
def test_bad_arguments_give_one_line(
    checkpoint: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [argument] if not argument.startswith("-") else [str(checkpoint), argument]
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["plan", *arguments]))
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
