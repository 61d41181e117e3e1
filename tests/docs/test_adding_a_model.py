"""The code of docs/adding-a-model.md: files of the repository and their parts, and a package."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import tomllib
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from support.architectures.native import Native
from support.architectures.variant import Variant, token_sequences
from support.architectures.variants import VARIANTS, variants_of
from support.models import load_step_model
from support.page_snippets import Snippet, snippets
from support.paged import PagedRunner
from support.recipe_packages import pip_install
from taco_llm import ModelRegistry, recipes
from taco_llm.cli.main import main
from taco_worker.models.config import load_hf_config
from taco_worker.models.registry import BUILT_IN

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-a-model.md"
SNIPPETS = list(snippets(PAGE))
EXCERPTS = [one for one in SNIPPETS if one.kind == "excerpt"]
# The examples: one that TACO has, and one for a package.
BUILT_IN_EXAMPLE, PACKAGED = "SeedOssForCausalLM", "SolarOpenForCausalLM"
NUM_BLOCKS = 40


def only(kind: str, argument: str = "") -> Snippet:
    (found,) = (one for one in SNIPPETS if (one.kind, one.argument) == (kind, argument))
    return found


def packaged_variant() -> Variant:
    values: dict[str, Any] = {}
    exec(only("variant").text, values)
    (found,) = (one for one in values.values() if isinstance(one, Variant))
    return found


SOLAR_OPEN = packaged_variant()
assert isinstance(SOLAR_OPEN.layout, Native)
STACKED = replace(SOLAR_OPEN, layout=replace(SOLAR_OPEN.layout, as_saved_by_transformers=True))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed package, for sys.path."""
    source = tmp_path_factory.mktemp("package")
    for file in (one for one in SNIPPETS if one.kind == "package"):
        (source / file.argument).write_text(file.text)
    return pip_install(source, source.parent / "installed")


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package)
    monkeypatch.setattr(ModelRegistry, "_registered", {})


def test_a_whole_file_is_shown() -> None:
    files = [one for one in SNIPPETS if one.kind == "file"]
    assert [one.argument for one in files] == [
        f"worker/taco_worker/models/recipes/{BUILT_IN[BUILT_IN_EXAMPLE]}.py"
    ]
    for one in files:
        assert one.text == (ROOT / one.argument).read_text()


def test_every_part_of_the_first_example_is_shown() -> None:
    """Its line of the registry, its config and variant, and its entry in the table of models."""
    (variant,) = (one for one in variants_of(BUILT_IN_EXAMPLE) if one.fields)
    shown = "".join(one.text for one in EXCERPTS)
    assert f'"{BUILT_IN_EXAMPLE}": "{BUILT_IN[BUILT_IN_EXAMPLE]}",' in shown
    assert f'"architectures": ["{BUILT_IN_EXAMPLE}"]' in shown
    assert f'"{variant.name}"' in shown
    assert f"- architectures: [{BUILT_IN_EXAMPLE}]" in shown


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda one: one.argument)
def test_part_of_a_file_is_there(excerpt: Snippet) -> None:
    """As consecutive lines, indented by any number of spaces; a comma may follow the last one."""
    lines = [rf"\1{re.escape(line)}" if line else "" for line in excerpt.text.splitlines()]
    first = re.escape(excerpt.text.splitlines()[0])
    pattern = "\n".join([rf"^( *){first}", *lines[1:]])
    assert re.search(rf"{pattern},?$", (ROOT / excerpt.argument).read_text(), re.MULTILINE)


@pytest.mark.kernels
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("one", [SOLAR_OPEN, STACKED], ids=["one by one", "stacked"])
def test_logits_and_greedy_tokens_of_the_package_are_the_oracles(
    one: Variant, serves: str, tmp_path: Path
) -> None:
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
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("field", "value"), SOLAR_OPEN.fields)
def test_changed_field_of_the_package_follows_the_oracle(
    field: str, value: Any, tmp_path: Path
) -> None:
    path = SOLAR_OPEN.make(tmp_path / "model", **{field: value})
    sequences = token_sequences((21, 40))
    runner = PagedRunner(load_step_model(path, "kernels"), num_blocks=NUM_BLOCKS)
    actual = runner.step(dict(zip("ab", sequences, strict=True)))
    expected = SOLAR_OPEN.reference(path)(sequences)
    for logits, one in zip(actual.values(), expected, strict=True):
        torch.testing.assert_close(logits, one, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("field", "value"), SOLAR_OPEN.rejected)
def test_values_that_the_oracle_of_the_package_ignores_are_rejected(
    field: str, value: Any, tmp_path: Path
) -> None:
    path = SOLAR_OPEN.make(tmp_path, **{field: value})
    with pytest.raises(ValueError, match=field):
        load_hf_config(path)


def test_the_plan_is_printed_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(VARIANTS["seed-oss-like"].config))
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


@pytest.mark.usefixtures("installed")
def test_a_program_registers_the_recipe() -> None:
    exec(only("program").text, {})


@pytest.mark.kernels
def test_logits_are_compared_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = VARIANTS["seed-oss-like"]
    path = one.make(tmp_path / "model")
    (token_ids,) = token_sequences((30,))
    (expected,) = one.reference(path)([token_ids])
    exec(only("compare").text, {"path": path, "token_ids": token_ids, "expected": expected})
    printed = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert printed.keys() == {"kernels", "torch"}
    differences = [float(text.removeprefix("tensor(").rstrip(")")) for text in printed.values()]
    assert max(differences) < 1e-4


def test_the_package_declares_an_architecture_that_taco_has_not() -> None:
    project = tomllib.loads(only("package", "pyproject.toml").text)["project"]
    (name,) = project["entry-points"][recipes.ENTRY_POINT_GROUP]
    assert name == SOLAR_OPEN.architecture == PACKAGED
    assert name not in BUILT_IN
    package = only("package", "solar_open_recipe.py").text
    assert re.findall(r"^from (taco\S+)", package, re.MULTILINE) == ["taco_llm.recipes"]


def test_the_command_selects_tests_of_the_first_example() -> None:
    _, *options = shlex.split(only("tests").text.replace("\\\n", " "))
    assert options[:2] == ["-m", "pytest"]
    word = options[options.index("-k") + 1]
    assert {v.architecture for v in VARIANTS.values() if word in v.name} == {BUILT_IN_EXAMPLE}
    files = [ROOT / one for one in options if one.endswith(".py")]
    assert len(files) > 1
    assert all("support.architectures.variants import" in one.read_text() for one in files)


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
