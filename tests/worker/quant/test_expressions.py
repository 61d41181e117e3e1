"""Regular expressions of checkpoints: what `re` matches, in bounded time."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from support.checkpoints import make_checkpoint
from taco_worker.models.config import load_hf_config
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.quant import expressions
from taco_worker.quant.expressions import Expression
from taco_worker.quant.formats import auto_round, fp8, gptq, modelopt
from taco_worker.quant.formats.bitsandbytes import checkpoint as bitsandbytes
from taco_worker.quant.formats.compressed_tensors import config as compressed_tensors
from taco_worker.quant.modules import is_listed, matches_name

CHARACTERS = st.sampled_from(["a", "b", ".", r"\.", r"\d", r"\w", "[^a]", "[0-9b]", r"\b", "^"])
EXPRESSIONS = st.recursive(
    CHARACTERS | st.just("$"),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        inner.map(lambda part: f"({part})?"),
        inner.map(lambda part: f"(?:{part}){{1,2}}"),
        inner.map(lambda part: f"(?:{part})*?"),
        inner.map(lambda part: f"(?!{part})"),
        inner.map(lambda part: f"(?={part})"),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=500)
@given(text=EXPRESSIONS, name=st.text(alphabet="ab.1_", max_size=8))
def test_the_same_names_as_re(text: str, name: str) -> None:
    assert Expression(text).match(name) == (re.match(text, name) is not None)
    assert Expression(text).search(name) == (re.search(text, name) is not None)


@pytest.mark.parametrize(
    "text", ["((.*)*)*(.*)*x$", "(a|a)*x$", "(a?){30}a{30}x", ".*" * 30 + "x$", "((a+)+)+x$"]
)
def test_hostile_expressions_take_few_steps(text: str) -> None:
    assert not Expression(text).match("a" * 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(", "unterminated"),
        (r"(a)\1", "groupref is not supported"),
        ("(?i)a", "flags are not supported"),
        ("(?<=a)b", "looks behind"),
        ("a" * 3000, "3000 characters"),
    ],
)
def test_what_is_not_read_is_one_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"\A[^\n]*{message}[^\n]*\Z"):
        Expression(text)


NESTED_ASSERTS = "(?:(?=(?:(?=(?:(?=(?:(?=.*#)|.)*)|.)*)|.)*).)*#"


def test_too_many_steps_are_one_error() -> None:
    with pytest.raises(ValueError, match=r"\Athe regular expression '[^\n]*' takes too long\Z"):
        Expression(NESTED_ASSERTS).match("a" * 999)


def test_names_share_a_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint has many modules: none takes long, and neither do all of them."""
    monkeypatch.setattr(expressions, "_MAX_ALL_STEPS", 50_000)
    hostile = Expression("(?:(?=(?:(?=.*#)|.)*).)*#")
    names = (f"model.layers.{number}.mlp.down_proj" for number in range(1000))
    with pytest.raises(ValueError, match="takes too long"):
        any(map(hostile.match, names))


@pytest.mark.parametrize(
    ("name", "length"), [("a" * 1001, 1001), ("model." + "x" * 2000, 2006)], ids=["a", "b"]
)
@pytest.mark.parametrize("text", [".*x", "(.*)*x"])
def test_names_are_bounded(text: str, name: str, length: int) -> None:
    for matches in (Expression(text).match, Expression(text).search):
        with pytest.raises(ValueError, match=f"a name of {length} characters is too long"):
            matches(name)


MANY = [f"((.*)*{number})*x" for number in range(9)]


@pytest.mark.parametrize(
    ("reader", "config", "where"),
    [
        (gptq, {"bits": 4, "dynamic": {key: {} for key in MANY}}, "quantization_config.dynamic"),
        (
            auto_round,
            {"bits": 4, "extra_config": {key: {} for key in MANY}},
            "quantization_config.extra_config",
        ),
        (
            compressed_tensors,
            {"config_groups": {}, "ignore": [f"re:{one}" for one in MANY]},
            "ignore",
        ),
        (
            compressed_tensors,
            {"config_groups": {"a": {"targets": [f"re:{one}" for one in MANY], "weights": {}}}},
            "config group a: targets",
        ),
        (fp8, {"modules_to_not_convert": MANY}, "modules_to_not_convert"),
        (modelopt, {"quant_algo": "FP8", "ignore": [one.replace("*", "+") for one in MANY]}, "ex"),
        (bitsandbytes, {"load_in_4bit": True, "llm_int8_skip_modules": MANY}, "llm_int8_skip_mod"),
    ],
)
def test_lists_of_slow_expressions_are_one_error(
    tmp_path: Path, reader: Any, config: dict[str, Any], where: str
) -> None:
    message = rf"\A{where}[^\n]* has [^\n]* and 8 more regular expressions that repeat[^\n]*\Z"
    with pytest.raises(ValueError, match=message):
        reader.read(config, tmp_path)


PLAIN = [f"model.layers.{number}.mlp.up_proj" for number in range(30_000)]


def test_long_lists_of_names_are_read() -> None:
    """None is compiled: each expression would take a step for every module."""
    assert is_listed("language_model.model.layers.29999.mlp.up_proj", PLAIN)
    assert is_listed("model.layers.5.mlp.up_proj.x", PLAIN)
    assert is_listed("model.layers.5.mlp.up_proj", ["layers.5", *PLAIN])
    assert not is_listed("model.layers.30000.mlp.up_proj", PLAIN)
    assert not is_listed("model.layers.5.mlp.up_projection", PLAIN)


@pytest.mark.parametrize(
    ("reader", "config"),
    [
        (gptq, {"bits": 4, "dynamic": {f"-:x{number}.*": {} for number in range(51)}}),
        (auto_round, {"bits": 4, "extra_config": {f"x{i}.*": {} for i in range(51)}}),
        (compressed_tensors, {"config_groups": {}, "ignore": [f"re:{i}" for i in range(51)]}),
        (fp8, {"modules_to_not_convert": [f"x{number}.*" for number in range(51)]}),
        (modelopt, {"quant_algo": "FP8", "ignore": [f"x{number}*" for number in range(51)]}),
    ],
)
def test_too_many_expressions_are_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Any, config: dict[str, Any]
) -> None:
    monkeypatch.setattr(expressions, "_MAX_EXPRESSIONS", 50)
    monkeypatch.setattr(modelopt, "_MAX_PATTERNS", 50)
    with pytest.raises(ValueError, match=r"\A[^\n]* has more than 50 [^\n]*\Z"):
        reader.read(config, tmp_path)


@pytest.mark.parametrize("pattern", ["(", NESTED_ASSERTS])
def test_the_error_names_file_and_expression(tmp_path: Path, pattern: str) -> None:
    path = make_checkpoint(tmp_path / "model")
    fields = json.loads((path / "config.json").read_text())
    quantization = {"quant_method": "gptq", "bits": 4, "dynamic": {f"-:{pattern}": {}}}
    (path / "config.json").write_text(json.dumps(fields | {"quantization_config": quantization}))
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        tensors[name.replace(".weight", ".qweight")] = tensors.pop(name)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    message = rf"\A{path}/config\.json: [^\n]*{re.escape(repr(pattern))}[^\n]*\Z"
    with pytest.raises(ValueError, match=message):
        check_weight_files(load_hf_config(path))


def test_a_hostile_rule_of_a_checkpoint(tmp_path: Path) -> None:
    config = {"bits": 4, "group_size": 64, "dynamic": {"-:((.*)*)*(.*)*x$": {}}}
    format_ = gptq.read(config, tmp_path).format_of("model.layers.10.mlp.down_proj", 64, 64)
    assert format_ is not None
    assert not matches_name("model.layers.10.mlp.down_proj", "re:((.*)*)*(.*)*x$")
    assert not is_listed("model.layers.10.mlp.down_proj", ["((.*)*)*(.*)*x$"])
