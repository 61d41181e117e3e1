"""The argument lora_modules: all forms of vLLM, and what is wrong with others."""

from pathlib import Path
from typing import Any

import pytest

from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import given
from taco_llm.cli.main import build_parser, main
from taco_llm.cli.options import collect
from taco_llm.supervisor.ray_replicas.command_lines import worker_command
from taco_proto.errors import ArgumentError


@pytest.mark.parametrize(
    "given",
    [
        {"sql": "org/sql", "chat": Path("org/chat")},
        ["sql=org/sql", "chat=org/chat"],
        ('{"name": "sql", "path": "org/sql"}', "chat=org/chat"),
        ['{"sql": "org/sql", "chat": "org/chat"}'],
        [{"sql": "org/sql"}, {"chat": "org/chat"}],
        [
            {"name": "sql", "path": "org/sql", "base_model_name": "base"},
            {"name": "chat", "path": "org/chat"},
        ],
    ],
)
def test_forms(given: Any) -> None:
    args = EngineArgs(model="demo", lora_modules=given)
    assert args.adapters == {"sql": "org/sql", "chat": "org/chat"}
    assert args.with_updates(seed=3).adapters == args.adapters
    assert args.model_config().lora_modules == (("sql", "org/sql"), ("chat", "org/chat"))


def test_one_adapter_and_none() -> None:
    alone: tuple[Any, ...] = ("sql=a", {"name": "sql", "path": "a"}, {"sql": "a"})
    for one in alone:
        assert EngineArgs(model="demo", lora_modules=one).adapters == {"sql": "a"}
    assert EngineArgs(model="demo", lora_modules=("sql=a=b",)).adapters == {"sql": "a=b"}
    none: tuple[Any, ...] = (None, (), {})
    for nothing in none:
        assert EngineArgs(model="demo", lora_modules=nothing).adapters == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["sql"], "give NAME=PATH"),
        ([7], "give NAME=PATH"),
        (7, "give NAME=PATH"),
        ({"sql": 7}, "give NAME=PATH"),
        ([{"name": "sql"}], "give NAME=PATH"),
        (['{"path": "a"}'], "give NAME=PATH"),
        (['{"sql": 7}'], "give NAME=PATH"),
        (["{}x"], "no JSON"),
        ([{"name": "sql", "path": "a", "rank": 3}], "give NAME=PATH"),
        (['{"name": '], "no JSON"),
        (["=a"], "an adapter has a name without"),
        (["sql="], "an adapter has a name without"),
        (["a\nb=c"], "an adapter has a name without"),
        (["sql=a", "sql=b"], "has the name 'sql' twice"),
        (["demo=a"], "has the name of the model, 'demo'"),
    ],
)
def test_what_is_wrong(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        EngineArgs(model="demo", lora_modules=given)


def test_not_with_a_merged_adapter() -> None:
    with pytest.raises(ArgumentError, match="lora_modules and merge_lora contradict each other"):
        EngineArgs(model="demo", lora_modules=("sql=a",), merge_lora="b")


def test_errors_of_the_command_line_name_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "demo", "--lora-modules", "sql"]) == 2
    assert "error: --lora-modules has 'sql': give NAME=PATH" in capsys.readouterr().err
    assert main(["serve", "demo", "--lora-modules", "sql=a", "--merge-lora", "b"]) == 2
    assert "error: --lora-modules and --merge-lora contradict" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        "lora-modules: [sql=org/sql, chat=org/chat]",
        "lora_modules: {sql: org/sql, chat: org/chat}",
        "lora-modules:\n- {name: sql, path: org/sql}\n- chat=org/chat",
    ],
)
def test_configuration_files_give_all_forms(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    namespace = build_parser().parse_args(["serve", "demo", "--config", str(path)])
    values = given(EngineArgs, collect(namespace.parser, namespace))
    assert EngineArgs(**values).adapters == {"sql": "org/sql", "chat": "org/chat"}


def test_convert_takes_no_adapters_by_request(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "demo", "--out", "x", "--lora-modules", "sql=a"])
    assert "unrecognized arguments: --lora-modules" in capsys.readouterr().err


def test_a_draft_model_has_no_adapters() -> None:
    args = EngineArgs(model="demo", lora_modules=("sql=a",), speculative_model="demo")
    drafter = args.drafter_config()
    assert drafter is not None
    assert drafter.model.lora_modules == ()


def test_workers_of_other_nodes_get_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter").mkdir()
    modules = ("sql=adapter", "chat=org/chat")
    argv = worker_command(EngineArgs(model="demo", lora_modules=modules), "h:1", "w")
    shown = [f"--lora-modules=sql={tmp_path / 'adapter'}", "--lora-modules=chat=org/chat"]
    assert [flag for flag in argv if flag.startswith("--lora-modules")] == shown
    argv = worker_command(EngineArgs(model="demo", merge_lora="adapter"), "h:1", "w")
    assert f"--merge-lora={tmp_path / 'adapter'}" in argv
