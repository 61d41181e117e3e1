"""`taco_llm draft-worker`: flags and configuration."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from support.fake_hub import serve_hub
from support.patience import PATIENCE_SECONDS
from taco_demo.locate import find_model
from taco_llm.args.draft_worker_args import DraftWorkerArgs
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import given
from taco_llm.cli.main import build_parser, main
from taco_llm.cli.options import collect
from taco_proto.config import DrafterConfig
from taco_proto.errors import ConfigurationError

pytestmark = pytest.mark.process


def parse(*argv: str) -> dict[str, Any]:
    namespace = build_parser().parse_args(("draft-worker", *argv))
    return collect(namespace.parser, namespace)


def config_of(*argv: str) -> DrafterConfig:
    values = parse("--speculative-model", "demo-draft", *argv)
    return DraftWorkerArgs(**given(DraftWorkerArgs, values)).drafter_config("host:7100", "d1")


def test_the_defaults_without_flags() -> None:
    config = config_of()
    assert config.model.model == str(find_model("demo-draft"))
    assert config.model.served_name == "demo-draft"
    default = DrafterConfig(model=config.model, scheduler="host:7100", name="d1")
    assert config == default
    assert config.model.quantization is None


def test_every_flag_reaches_the_configuration(tmp_path: Path) -> None:
    config = config_of(
        *("--quantization", "none", "--draft-backend", "ipex", "--dtype", "float32"),
        *("--load-format", "dummy", "--revision", "r", "--download-dir", str(tmp_path)),
        *("--max-model-len", "99", "--num-threads", "3", "--max-num-seqs", "4"),
        *("--num-gpu-blocks-override", "5"),
    )
    model = config.model
    assert (model.quantization, model.dtype, model.load_format) == ("none", "float32", "dummy")
    assert (model.revision, model.download_dir, model.max_model_len) == ("r", str(tmp_path), 99)
    assert (config.backend, config.num_threads) == ("ipex", 3)
    assert (config.max_num_seqs, config.num_blocks) == (4, 5)


def test_an_unreachable_hub_is_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_hub({}) as (address, _):
        pass
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with pytest.raises(ConfigurationError, match=r"org/draft .+ the Hugging Face hub cannot be"):
        EngineArgs(model="demo", speculative_model="org/draft").speculative_kind()
    assert not caplog.records, "the hub's client retried"


@pytest.mark.parametrize(
    "name", ["max_model_len", "num_threads", "max_num_seqs", "num_gpu_blocks_override"]
)
@pytest.mark.parametrize("value", [0, True, "4"])
def test_numbers_below_one_are_rejected(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be an integer of at least 1"):
        DraftWorkerArgs(speculative_model="demo-draft", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--scheduler", "x:1"], "--speculative-model is needed"),
        (["--speculative-model", "demo-draft"], "--scheduler is needed"),
        (["--speculative-model", "", "--scheduler", "x:1"], "--speculative-model is empty"),
        (["--speculative-model", "./no/where", "--scheduler", "x:1"], "does not exist"),
        (["--quantization", "none-such"], "'none-such' is not available; choose from"),
        (["--draft-backend", "cuda"], "'cuda' is not available; choose from kernels, ipex"),
    ],
)
def test_wrong_flags_are_a_one_line_error(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["draft-worker", *argv])
    except SystemExit as exit_:
        code = exit_.code
    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


def test_the_command_runs_a_draft_worker_until_it_is_told_to_stop(tmp_path: Path) -> None:
    argv = ["draft-worker", "--speculative-model", "demo-draft", "--num-threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "taco_llm.cli.main", *argv, "--scheduler", f"unix:{tmp_path}/s"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "demo-draft on" in process.stderr.readline()
    assert "reconnecting" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
