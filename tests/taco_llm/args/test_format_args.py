"""Flags that select the formats of a model's files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import given
from taco_llm.cli.main import build_parser
from taco_llm.cli.options import collect
from taco_llm.supervisor.child_message import decode_config, encode_config
from taco_proto.config import GatewayConfig, ModelConfig
from taco_proto.errors import ConfigurationError

ARGV = ["--tokenizer-mode", "mistral", "--config-format", "mistral", "--load-format", "mistral"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "params.json").write_text("{}")
    return str(tmp_path)


def parse(*argv: str) -> EngineArgs:
    namespace = build_parser().parse_args(argv)
    return EngineArgs(**given(EngineArgs, collect(namespace.parser, namespace)))


def test_a_model_in_mistrals_format(model: str) -> None:
    config = parse("serve", model, *ARGV, "--disable-sliding-window").model_config()
    assert config.model == model
    assert config.tokenizer_mode == config.config_format == config.load_format == "mistral"
    assert config.disable_sliding_window


def test_overrides_reach_a_child_process(model: str) -> None:
    overrides: dict[str, Any] = {"rope_scaling": {"factor": 2.0}, "architectures": ["X"]}
    config = parse("serve", model, "--hf-overrides", json.dumps(overrides)).model_config()
    assert config.hf_overrides == overrides
    message = json.loads(encode_config(GatewayConfig(model=config, scheduler="s"), 1))
    decoded = decode_config(ModelConfig, message["config"]["model"])
    assert decoded.hf_overrides == overrides


@pytest.mark.parametrize("text", ["[]", "3", "{", "null"])
def test_overrides_on_the_command_line_are_an_object(
    model: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse("serve", model, "--hf-overrides", text)
    assert "--hf-overrides" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("value", [[1], "{}"])
@pytest.mark.parametrize("name", ["hf_overrides", "rope_scaling", "model_loader_extra_config"])
def test_objects_in_python_are_dicts(model: str, name: str, value: Any) -> None:
    line = f"{name} must be a dict (a JSON object), got {value!r}"
    with pytest.raises(ConfigurationError, match=re.escape(line)):
        EngineArgs(model=model, **{name: value})


def test_paths_and_torch_dtypes_in_python(model: str) -> None:
    values: dict[str, Any] = {"model": Path(model), "dtype": torch.bfloat16}
    args = EngineArgs(**values, speculative_model=Path("draft"))  # type: ignore[arg-type]
    assert (args.model, args.dtype, args.speculative_model) == (model, "bfloat16", "draft")
    assert args.model_config().served_name == model
    with pytest.raises(ConfigurationError, match="dtype='int8' is not available; choose from auto"):
        EngineArgs(**values | {"dtype": torch.int8})


@pytest.mark.parametrize("name", ["tokenizer_mode", "config_format", "load_format"])
def test_other_formats_are_rejected_in_one_line(model: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}='none-such' is not available"):
        EngineArgs(model=model, **{name: "none-such"})  # type: ignore[arg-type]


def test_the_bitsandbytes_load_format_means_its_quantization(model: str) -> None:
    for quantization in (None, "bitsandbytes"):
        args = EngineArgs(model=model, load_format="bitsandbytes", quantization=quantization)
        assert args.model_config().quantization == "bitsandbytes"
    with pytest.raises(ConfigurationError, match="quantization=int8 contradict each other"):
        EngineArgs(model=model, load_format="bitsandbytes", quantization="int8")
