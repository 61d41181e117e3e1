"""Plug-ins: descriptions, classes and response templates from files and modules."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from support.response_samples import SAMPLES, pieces, response_template
from taco_gateway.parser_plugins import ReasoningFormat, ToolFormat
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.plugins import Reasoning, Tools, load_reasoning, load_tools
from taco_gateway.text.response.response_delta import ResponseDelta, whole_calls
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser
from taco_proto.errors import ConfigurationError

DOCS = Path(__file__).parents[4] / "docs" / "tools.md"
CLASSES = '''
from taco_gateway.parser_plugins import *

class Lines(ToolParser):
    """A call is a line `!name {arguments}`."""

    markers = ("<|mark|>",)

    def __init__(self, schemas):
        super().__init__(schemas)
        self.held = ""

    def feed(self, text):
        if "bug" in text:
            raise RuntimeError("a bug")
        *lines, self.held = (self.held + text).split("\\n")
        for line in lines:
            yield from self.line(line)

    def finish(self):
        return self.line(self.held)

    def line(self, line):
        if not line.startswith("!"):
            yield ContentPart(line.replace("<|mark|>", "*") + "\\n")
            return
        name, _, arguments = line[1:].partition(" ")
        yield CallStart(name)
        for char in arguments:
            yield CallArguments(char)
        yield CallEnd()


class UpToDash(ReasoningParser):
    def __init__(self, prompt_end):
        super().__init__(prompt_end)
        self.inside = prompt_end.endswith("think:")

    def feed(self, text):
        if not self.inside:
            return ReasoningStep(rest=text)
        reasoning, dash, rest = text.partition("#")
        return ReasoningStep(reasoning, rest if dash else None)


TOOL_FORMATS = {"lines": Lines}
REASONING_FORMATS = {"dash": UpToDash}
'''
TEXT = 'A <|mark|> line.\n!f {"a": 1}\n!g {}\n'


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def parse(
    text: str,
    tools: Tools | None,
    reasoning: Reasoning | None = None,
    *,
    lengths: tuple[int, ...] = (10**9,),
    **options: Any,
) -> tuple[str, str, list[tuple[str | None, str]], int]:
    parser = ResponseParser(
        ParserOptions(markers=MarkerTokens({}, (), ()), tools=tools, reasoning=reasoning, **options)
    )
    delta = ResponseDelta()
    for piece in pieces(text, lengths):
        parser.feed(piece)
        delta.extend(parser.take())
    parser.finish()
    delta.extend(parser.take())
    calls = [(call.name, call.arguments) for call in whole_calls(delta.calls)]
    return delta.reasoning, delta.content, calls, parser.num_whole_calls


def test_a_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from taco_gateway.parser_plugins import *\n"
        "TOOL_FORMATS = {'mine': ToolFormat(opens=('<c>',), json_call=JsonCall())}\n"
        "REASONING_FORMATS = {'mine': ReasoningFormat(opens=('<r>',), closes=('</r>',))}\n"
    )
    place = write(tmp_path / "mine_plugin.py", source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for each in (place, "mine_plugin"):
        tools, reasoning = load_tools(each)["mine"], load_reasoning(each)["mine"]
        assert isinstance(tools, ToolFormat)
        assert isinstance(reasoning, ReasoningFormat)
        parsed = parse('<r>so</r>ok <c>{"name": "f"}', tools, reasoning, lengths=(3,))
        assert parsed == ("so", "ok", [("f", "{}")], 1)


def test_a_response_template_as_json(tmp_path: Path) -> None:
    template = response_template(SAMPLES["hermes"], "qwen3")
    place = write(tmp_path / "own.json", json.dumps(template))
    assert isinstance(load_tools(place)["own"], ToolFormat)
    assert isinstance(load_reasoning(place)["own"], ReasoningFormat)
    source = f"TOOL_FORMATS = {{'own': {template!r}}}"
    assert load_tools(write(tmp_path / "own.py", source)) == load_tools(place)


@pytest.mark.parametrize("lengths", [(10**9,), (1,), (3, 1, 5)])
def test_classes(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    place = write(tmp_path / "classes.py", CLASSES)
    tools, reasoning = load_tools(place)["lines"], load_reasoning(place)["dash"]
    calls = [("f", '{"a": 1}'), ("g", "{}")]
    assert parse(TEXT, tools, lengths=lengths) == ("", "A * line.", calls, 2)
    assert parse(f"hm#{TEXT}", tools, reasoning, lengths=lengths, prompt_end="think:") == (
        "hm",
        "A * line.",
        calls,
        2,
    )
    assert parse(TEXT, tools, reasoning, lengths=lengths, prompt_end="answer:")[:1] == ("",)
    assert parse(TEXT, tools, lengths=lengths, max_calls=1)[2:] == (calls[:1], 1)
    assert parse("plain #", None, reasoning, lengths=lengths)[:2] == ("", "plain #")


def test_a_hidden_marker_token_has_its_spelling(tmp_path: Path) -> None:
    tools = load_tools(write(tmp_path / "classes.py", CLASSES))["lines"]
    parser = ResponseParser(
        ParserOptions(markers=MarkerTokens({"<|mark|>": 7}, {7}, ("<|mark|>",)), tools=tools)
    )
    parser.add_token(7, "", 0)
    parser.feed("x\n")
    parser.finish()
    assert parser.take().content == "*x\n\n"


def test_a_class_that_fails_leaves_the_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tools = load_tools(write(tmp_path / "classes.py", CLASSES))["lines"]
    with caplog.at_level(logging.ERROR):
        assert parse("a bug\nand more", tools, lengths=(5, 100))[1:] == ("a bug\nand more", [], 0)
    assert "the rest of the answer is content" in caplog.text


BROKEN = [
    ("x.py", None, "No such file"),
    ("x.json", None, "there is no such file"),
    ("x.json", "[]", "is not a JSON object"),
    ("x.json", '{"fields": {"content": {}}}', "x: it describes no"),
    ("x.py", "1 / 0", "ZeroDivisionError"),
    ("x.py", "syntax error", "SyntaxError"),
    ("x.py", "y = 1", "no attribute"),
    ("x.py", "TOOL_FORMATS = REASONING_FORMATS = {}", "not a dict with formats"),
    ("x.py", "TOOL_FORMATS = REASONING_FORMATS = {'a': 1}", "'a' in .* is a int; it must be"),
    ("x.py", "TOOL_FORMATS = REASONING_FORMATS = {'a': str}", "'a' in .* is a type; it must be"),
]


@pytest.mark.parametrize(("name", "text", "reason"), BROKEN)
def test_broken_plugins(tmp_path: Path, name: str, text: str | None, reason: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    for load, flag in (
        (load_tools, "--tool-parser-plugin"),
        (load_reasoning, "--reasoning-parser-plugin"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as error:
            load(str(path))
        assert str(error.value).startswith(f"{flag} {path}: ")
        assert "\n" not in str(error.value)


def test_an_unknown_module() -> None:
    with pytest.raises(ConfigurationError, match=r"no_such_module: ModuleNotFoundError"):
        load_tools("no_such_module")


def test_the_plugins_of_the_documentation(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    files = {name: write(tmp_path / name, source) for name, source in blocks}
    tools = load_tools(files["my_format.py"])["my_format"]
    assert parse('ok <call>{"name": "f", "arguments": {"a": 1}}</call>', tools, lengths=(2,)) == (
        "",
        "ok",
        [("f", '{"a": 1}')],
        1,
    )
    parser = load_tools(files["my_parser.py"])["my_parser"]
    assert parse('ok\n/call f {"a": 1}\n', parser, lengths=(2,))[1:] == (
        "ok",
        [("f", '{"a": 1}')],
        1,
    )
