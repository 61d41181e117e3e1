"""The flags for tool calls and reasoning: what they need, and the formats that their help names."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from taco_gateway.text.response.built_in import (
    CHANNEL_REASONING,
    CHANNEL_TOOLS,
    REASONING_FORMATS,
    TOOL_FORMATS,
)
from taco_llm.args.gateway_args import GatewayArgs
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError

DOCS = Path(__file__).parents[3] / "docs" / "tools.md"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"enable_auto_tool_choice": True}, "enable_auto_tool_choice needs tool_call_parser"),
        ({"tool_parser_plugin": "x.py"}, "tool_parser_plugin needs tool_call_parser"),
        ({"reasoning_parser_plugin": "x.py"}, "reasoning_parser_plugin needs reasoning_parser"),
    ],
)
def test_what_a_flag_needs(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        GatewayArgs(**given)


def test_the_gateway_gets_the_flags() -> None:
    given: dict[str, Any] = {
        "tool_call_parser": "a",
        "tool_parser_plugin": "b",
        "reasoning_parser": "c",
        "reasoning_parser_plugin": "d",
    }
    args = GatewayArgs(enable_auto_tool_choice=True, **given)
    config = args.gateway_config(ModelConfig(model="m"), "unix:/x")
    assert {name: getattr(config, name) for name in given} == given
    assert config.enable_auto_tool_choice


@pytest.mark.parametrize(
    ("flag", "formats"),
    [
        ("tool_call_parser", {*TOOL_FORMATS, CHANNEL_TOOLS}),
        ("reasoning_parser", {*REASONING_FORMATS, CHANNEL_REASONING}),
    ],
)
def test_help_and_page_name_all_formats(flag: str, formats: set[str]) -> None:
    (item,) = (item for item in fields(GatewayArgs) if item.name == flag)
    listed = item.metadata["flag"].help.partition(": ")[2].partition(";")[0]
    assert set(re.findall(r"[\w-]+", listed)) - {"or"} == formats
    table = DOCS.read_text().partition(f"| `--{flag.replace('_', '-')}` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == formats


def test_the_formats() -> None:
    assert set(TOOL_FORMATS) == {
        *("hermes", "mistral", "llama3_json", "pythonic", "internlm", "granite", "jamba"),
        *("qwen3_coder", "deepseek_v3", "deepseek_v31", "kimi_k2", "glm45", "glm47", "seed_oss"),
        *("minimax_m2", "minimax", "longcat", "granite-20b-fc", "phi4_mini_json", "xlam", "olmo3"),
        *("llama4_json", "llama4_pythonic", "qwen3_xml", "ernie45"),
    }
    assert set(REASONING_FORMATS) == {
        *("deepseek_r1", "qwen3", "granite", "mistral", "deepseek_v3", "glm45", "glm47", "holo2"),
        *("kimi_k2", "minimax_m2", "olmo3", "seed_oss", "step3"),
    }
