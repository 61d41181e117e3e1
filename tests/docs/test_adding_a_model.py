"""The code of docs/adding-a-model.md: recipes, checkpoints, a package, and parts of files."""

from __future__ import annotations

import ast
import doctest
import json
import re
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support.architectures.variant import Variant, token_sequences
from support.models import load_step_model
from support.page_snippets import Snippet, snippets
from support.paged import PagedRunner
from support.recipe_packages import pip_install
from taco_llm import ModelRegistry, recipes
from taco_llm.cli.main import main
from taco_worker.models.config import load_hf_config
from taco_worker.models.registry import BUILT_IN
from tools.models_page import Facts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-a-model.md"
SNIPPETS = list(snippets(PAGE))
EXCERPTS = [one for one in SNIPPETS if one.kind == "excerpt"]
ARCHITECTURES = {"SEED_OSS": "SeedOssForCausalLM", "MINIMAX_M2": "MiniMaxM2ForCausalLM"}
NUM_BLOCKS = 40


def only(kind: str, argument: str = "") -> Snippet:
    (found,) = (one for one in SNIPPETS if (one.kind, one.argument) == (kind, argument))
    return found


def variant(name: str) -> Variant:
    values: dict[str, Any] = {}
    exec(only("variant", name).text, values)
    found: Variant = values[name]
    return found


VARIANTS = {name: variant(name) for name in ARCHITECTURES}
FIELDS = [
    pytest.param(name, field, value, id=f"{name}-{field}")
    for name, one in VARIANTS.items()
    for field, value in one.fields
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """For sys.path: the recipe of the first example, and the installed package of the second."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "seed_oss.py").write_text(only("recipe", "seed_oss").text)
    source = tmp_path_factory.mktemp("package")
    for file in (one for one in SNIPPETS if one.kind == "package"):
        (source / file.argument).write_text(file.text)
    return [modules, pip_install(source, source.parent / "installed")]


@pytest.fixture(autouse=True)
def registered(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in folders:
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(ModelRegistry, "_registered", {})
    ModelRegistry.register_model("SeedOssForCausalLM", "seed_oss:plan")


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda one: one.argument)
def test_part_of_a_file_is_there(excerpt: Snippet) -> None:
    """As consecutive lines, indented by any number of spaces."""
    lines = [rf"\1{re.escape(line)}" if line else "" for line in excerpt.text.splitlines()]
    first = re.escape(excerpt.text.splitlines()[0])
    pattern = "\n".join([rf"^( *){first}", *lines[1:]])
    assert re.search(rf"{pattern}$", (ROOT / excerpt.argument).read_text(), re.MULTILINE)


@pytest.mark.kernels
@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_and_greedy_tokens_are_the_oracles(name: str, serves: str, tmp_path: Path) -> None:
    one = VARIANTS[name]
    assert one.architecture == ARCHITECTURES[name]
    path = one.make(tmp_path / "model")
    oracle = one.reference(path)
    sequences = token_sequences((52, 40, 3))
    runner = PagedRunner(load_step_model(path, serves), num_blocks=NUM_BLOCKS)
    actual = runner.step(dict(zip("abc", sequences, strict=True)))
    for logits, expected in zip(actual.values(), oracle(sequences), strict=True):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    (prompt,) = token_sequences((20,), seed=1)
    tokens, chunk = [], prompt
    for _ in range(6):
        chunk = [int(runner.step({"d": chunk})["d"][-1].argmax())]
        tokens += chunk
    assert tokens == oracle.greedy(prompt, 6)


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "field", "value"), FIELDS)
def test_changed_field_follows_the_oracle(
    name: str, field: str, value: Any, tmp_path: Path
) -> None:
    one = VARIANTS[name]
    path = one.make(tmp_path / "model", **{field: value})
    sequences = token_sequences((21, 40))
    runner = PagedRunner(load_step_model(path, "kernels"), num_blocks=NUM_BLOCKS)
    actual = runner.step(dict(zip("ab", sequences, strict=True)))
    for logits, expected in zip(actual.values(), one.reference(path)(sequences), strict=True):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_values_that_the_oracle_ignores_are_rejected(name: str, tmp_path: Path) -> None:
    for index, (field, value) in enumerate(VARIANTS[name].rejected):
        path = VARIANTS[name].make(tmp_path / str(index), **{field: value})
        with pytest.raises(ValueError, match=field):
            load_hf_config(path)


def test_the_plan_is_printed_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(VARIANTS["SEED_OSS"].config))
    assert main(["plan", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    shown = only("plan").text.splitlines()
    parts = [
        "\n".join(lines) + "\n"
        for is_gap, lines in groupby(shown, lambda line: line.strip() == "...")
        if not is_gap
    ]
    assert len(parts) > 1
    for part in parts:
        _, found, printed = printed.partition(part)
        assert found, part


def test_a_program_registers_the_recipe() -> None:
    exec(only("program").text, {})


@pytest.mark.kernels
def test_logits_are_compared_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = VARIANTS["SEED_OSS"]
    path = one.make(tmp_path / "model")
    (token_ids,) = token_sequences((30,))
    (expected,) = one.reference(path)([token_ids])
    exec(only("compare").text, {"path": path, "token_ids": token_ids, "expected": expected})
    printed = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert printed.keys() == {"kernels", "torch"}
    differences = [float(text.removeprefix("tensor(").rstrip(")")) for text in printed.values()]
    assert max(differences) < 1e-4


def test_the_package_declares_the_architecture() -> None:
    project = tomllib.loads(only("package", "pyproject.toml").text)["project"]
    (name,) = project["entry-points"][recipes.ENTRY_POINT_GROUP]
    assert name == ARCHITECTURES["MINIMAX_M2"]
    package = only("package", "minimax_m2_recipe.py").text
    assert re.findall(r"^from (taco\S+)", package, re.MULTILINE) == ["taco_llm.recipes"]


def test_the_entries_of_the_example_have_the_form_of_the_tables() -> None:
    entry = ast.literal_eval("{" + only("registry").text + "}")
    assert entry == {"SeedOssForCausalLM": "seed_oss"}
    assert not entry.keys() & BUILT_IN.keys()
    assert [Facts(**one).architectures for one in yaml.safe_load(only("facts").text)] == [
        ["SeedOssForCausalLM"]
    ]


def test_the_doctest_holds() -> None:
    test = doctest.DocTestParser().get_doctest(only("doctest").text, {}, "page", str(PAGE), 0)
    assert test.examples
    runner = doctest.DocTestRunner()
    report: list[str] = []
    runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_the_page_names_the_whole_interface() -> None:
    text = PAGE.read_text()
    table = text[text.index("| names of `taco_llm.recipes`") : text.index("## A new op")]
    assert set(re.findall(r"`(\w+)`", table.partition("\n")[2])) == set(recipes.__all__)
