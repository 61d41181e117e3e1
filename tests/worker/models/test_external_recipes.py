"""Recipes of other packages: entry points of packages that pip installed, and registered ones."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from support.recipe_packages import install_recipes
from taco_llm import ModelRegistry
from taco_worker.models.config import load_hf_config
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.registry import BUILT_IN, find_recipe
from taco_worker.models.registry import ModelRegistry as OfWorkers

pytestmark = pytest.mark.process

GOOD = """
from taco_llm.recipes import ConfigFields, ModelPlan, decoder, llama_spec

def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return decoder(architecture, llama_spec(fields, qkv_bias=True))
"""
FAILING = """
def fails(fields, architecture):
    return 1 / 0

def lacks_a_field(fields, architecture):
    return fields.size("num_towers")

def rejects(fields, architecture):
    raise ValueError("towers 3 is not supported")

def returns_no_plan(fields, architecture):
    return None

no_function = 3
"""
CONFIG = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two packages; both declare one of the architectures."""
    tower = install_recipes(
        tmp_path_factory.mktemp("tower"),
        "tower-recipes",
        {
            "TowerForCausalLM": "tower_good:plan",
            "LlamaForCausalLM": "tower_good:plan",
            "TwiceForCausalLM": "tower_good:plan",
            "ImportFailsForCausalLM": "tower_import_fails:plan",
            "ExitsForCausalLM": "tower_exits:plan",
            "SyntaxForCausalLM": "tower_syntax:plan",
            "MissingModuleForCausalLM": "tower_missing:plan",
            "MissingNameForCausalLM": "tower_good:nothing",
            "NoFunctionForCausalLM": "tower_failing:no_function",
            "BadTargetForCausalLM": "tower_good",
            "FailsForCausalLM": "tower_failing:fails",
            "LacksForCausalLM": "tower_failing:lacks_a_field",
            "RejectsForCausalLM": "tower_failing:rejects",
            "NoPlanForCausalLM": "tower_failing:returns_no_plan",
        },
        {
            "tower_good": GOOD,
            "tower_failing": FAILING,
            "tower_import_fails": "raise RuntimeError('no\\nlicense')",
            "tower_exits": "raise SystemExit(3)",
            "tower_syntax": "def plan(:",
        },
    )
    other = install_recipes(
        tmp_path_factory.mktemp("other"),
        "other-recipes",
        {"TwiceForCausalLM": "other_good:plan"},
        {"other_good": GOOD},
    )
    return [tower, other]


@pytest.fixture(autouse=True)
def new_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone afterwards, and each test is warned."""
    monkeypatch.setattr(ModelRegistry, "_registered", {})
    monkeypatch.setattr(ModelRegistry, "_warned_of", set())


@pytest.fixture
def installed(packages: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for path in packages:
        monkeypatch.syspath_prepend(path)


def plan_of(folder: Path, architecture: str) -> ModelPlan:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "architectures": [architecture]}))
    return load_hf_config(folder).plan


@pytest.mark.usefixtures("installed")
def test_a_recipe_of_a_package_makes_the_plan(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "TowerForCausalLM")
    assert plan.architecture == "TowerForCausalLM"
    assert "layers.0.attn.qkv_proj.bias" in plan.parameters
    assert "TowerForCausalLM" in ModelRegistry.get_supported_archs()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("ImportFailsForCausalLM", "cannot be loaded: RuntimeError: no license"),
        ("ExitsForCausalLM", "cannot be loaded: SystemExit: 3"),
        ("SyntaxForCausalLM", "cannot be loaded: SyntaxError: invalid syntax"),
        ("MissingModuleForCausalLM", "No module named 'tower_missing'"),
        ("MissingNameForCausalLM", "module 'tower_good' has no attribute 'nothing'"),
        ("NoFunctionForCausalLM", "is not a function"),
        ("BadTargetForCausalLM", "must be named as module:function, not 'tower_good'"),
        ("FailsForCausalLM", "fails for FailsForCausalLM: ZeroDivisionError: division by zero"),
        ("LacksForCausalLM", "config.json has no 'num_towers', which recipe"),
        ("RejectsForCausalLM", "towers 3 is not supported (recipe"),
        ("NoPlanForCausalLM", "returned NoneType instead of a ModelPlan"),
    ],
)
def test_a_failing_recipe_gives_one_line_that_names_the_package(
    tmp_path: Path, architecture: str, said: str
) -> None:
    with pytest.raises(ValueError, match=r"of the package tower-recipes 1\.2") as failed:
        plan_of(tmp_path, architecture)
    message = str(failed.value)
    assert said in message
    assert len(message.splitlines()) == 1
    assert plan_of(tmp_path, "LlamaForCausalLM").architecture == "LlamaForCausalLM"
    assert plan_of(tmp_path, "TowerForCausalLM").architecture == "TowerForCausalLM"


@pytest.mark.usefixtures("installed")
def test_a_package_cannot_replace_a_recipe_of_taco(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "layers.0.attn.qkv_proj.bias" not in plan_of(tmp_path, "LlamaForCausalLM").parameters
    with caplog.at_level(logging.WARNING, "taco.worker"):
        ModelRegistry.get_supported_archs()
        ModelRegistry.get_supported_archs()
    (warning,) = caplog.messages
    assert "recipe tower_good:plan of the package tower-recipes 1.2 is ignored" in warning
    assert "LlamaForCausalLM" in warning


@pytest.mark.usefixtures("installed")
def test_two_packages_with_one_architecture_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has two recipes: .*; uninstall one") as failed:
        plan_of(tmp_path, "TwiceForCausalLM")
    assert "other-recipes 1.2" in str(failed.value)
    assert "tower-recipes 1.2" in str(failed.value)


@pytest.mark.usefixtures("installed")
def test_a_mistyped_name_finds_a_recipe_of_a_package(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"did you mean .*TowerForCausalLM"):
        plan_of(tmp_path, "TowerForCausalLm")


@pytest.mark.usefixtures("installed")
def test_the_first_architecture_with_a_recipe_counts() -> None:
    assert find_recipe(["Unknown", "TowerForCausalLM", "LlamaForCausalLM"])[0] == "TowerForCausalLM"
    assert find_recipe(["LlamaForCausalLM", "TowerForCausalLM"])[0] == "LlamaForCausalLM"


def test_a_package_with_broken_metadata_disturbs_no_other(
    packages: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = tmp_path / "path" / "broken-9.dist-info"
    broken.mkdir(parents=True)
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 9\n")
    (broken / "entry_points.txt").write_text("[taco_llm.model_recipes]\nno equals sign\n")
    monkeypatch.syspath_prepend(broken.parent)
    monkeypatch.syspath_prepend(packages[0])
    with caplog.at_level(logging.WARNING, "taco.worker"):
        assert plan_of(tmp_path, "TowerForCausalLM").num_layers == 2
    assert any("cannot read the recipes of broken 9" in one for one in caplog.messages)


@pytest.mark.usefixtures("installed")
def test_a_program_registers_a_function_or_its_name(tmp_path: Path) -> None:
    def recipe(fields: ConfigFields, architecture: str) -> ModelPlan:
        return find_recipe(["OPTForCausalLM"])[1](fields, "LlamaForCausalLM")

    ModelRegistry.register_model("SpireForCausalLM", "tower_good:plan")
    assert plan_of(tmp_path, "SpireForCausalLM").architecture == "SpireForCausalLM"
    assert {"SpireForCausalLM", *BUILT_IN} <= ModelRegistry.get_supported_archs()
    ModelRegistry.register_model("SpireForCausalLM", recipe)
    with pytest.raises(ValueError, match=r"a_program_registers.*recipe"):
        plan_of(tmp_path, "SpireForCausalLM")


@pytest.mark.usefixtures("installed")
def test_a_program_replaces_a_recipe_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "taco.worker"):
        ModelRegistry.register_model("LlamaForCausalLM", "tower_good:plan")
    assert caplog.messages == ["recipe tower_good:plan replaces the recipe of LlamaForCausalLM"]
    assert "layers.0.attn.qkv_proj.bias" in plan_of(tmp_path, "LlamaForCausalLM").parameters


@pytest.mark.parametrize(
    ("architecture", "recipe", "error", "said"),
    [
        (3, "a:b", TypeError, "must be a string, not 3"),
        ("X", "no colon", ValueError, "module:function, not 'no colon'"),
        ("X", ModelPlan, TypeError, "a function that returns a ModelPlan"),
        ("X", None, TypeError, "a function that returns a ModelPlan"),
    ],
)
def test_bad_arguments_are_rejected_at_once(
    architecture: object, recipe: object, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        ModelRegistry.register_model(architecture, recipe)  # type: ignore[arg-type]
    assert "X" not in ModelRegistry.get_supported_archs()


def test_the_public_registry_is_that_of_workers() -> None:
    assert ModelRegistry is OfWorkers
