"""A model whose recipe is in an installed package: offline, served, and listed."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS
from support.recipe_packages import install_recipes
from support.serving import Serving
from taco_llm import LLM, ModelRegistry, SamplingParams
from taco_llm.cli.main import main

pytestmark = [pytest.mark.process, pytest.mark.kernels]

RECIPE = """
from taco_llm.recipes import ConfigFields, ModelPlan, decoder, llama_spec

def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return decoder(architecture, llama_spec(fields, qkv_bias=True))
"""
ENGINE: dict[str, Any] = {"num_gpu_blocks_override": 64, "num_threads": 1, "max_num_seqs": 2}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    recipes = {
        "TowerForCausalLM": "tower:plan",
        "BrokenForCausalLM": "missing:plan",
        "Qwen2ForCausalLM": "tower:plan",
    }
    return install_recipes(folder, "tower-recipes", recipes, {"tower": RECIPE})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same Qwen2 twice; the second names the architecture of the package."""
    known, tower = (
        make_checkpoint(tmp_path_factory.mktemp(name) / "model", "Qwen2ForCausalLM")
        for name in ("known", "tower")
    )
    change(tower, "TowerForCausalLM")
    return known, tower


def change(model: Path, architecture: str) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and in the processes that a test starts."""
    monkeypatch.setattr(ModelRegistry, "_warned_of", set())
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def greedy(model: Path) -> tuple[int, ...]:
    with LLM(str(model), **ENGINE) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        return tuple(llm.generate("Tell me", params, use_tqdm=False)[0].outputs[0].token_ids)


@pytest.mark.usefixtures("installed")
def test_it_runs_offline_and_is_served_by_other_processes(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    known, tower = checkpoints
    expected = greedy(known)
    assert greedy(tower) == expected
    flags = ["--num-gpu-blocks-override", "64", "--max-num-seqs", "2"]
    with Serving(tmp_path, tower, *flags) as serving:
        serving.wait_ready()
        body = {
            "model": str(tower),
            "prompt": "Tell me",
            "temperature": 0,
            "max_tokens": 12,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        url = f"{serving.url}/v1/completions"
        answer = httpx.post(url, json=body, timeout=PATIENCE_SECONDS).json()
        assert tuple(answer["choices"][0]["token_ids"]) == expected


@pytest.mark.usefixtures("installed")
def test_plan_lists_it_and_warns_of_names_of_taco(
    checkpoints: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert main(["plan", str(checkpoints[1])]) == 0
    assert capsys.readouterr().out.startswith("TowerForCausalLM: 2 layers, ")
    (warning,) = (one for one in caplog.messages if "is ignored" in one)
    assert "Qwen2ForCausalLM" in warning
    assert "tower-recipes 1.2" in warning


@pytest.mark.usefixtures("installed")
def test_a_recipe_that_cannot_be_imported_ends_serve_with_one_line(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "Qwen2ForCausalLM")
    change(model, "BrokenForCausalLM")
    with Serving(tmp_path, model) as serving:
        assert serving.process.wait(PATIENCE_SECONDS) != 0
        warning, line = serving.stderr.splitlines()
    assert "recipe tower:plan of the package tower-recipes 1.2 is ignored" in warning
    assert "recipe missing:plan of the package tower-recipes 1.2" in line
    assert "cannot be loaded: ModuleNotFoundError: No module named 'missing'" in line
