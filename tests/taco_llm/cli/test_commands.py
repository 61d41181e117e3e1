"""The command line: flags, one-line errors, the configuration file, help."""

import argparse
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taco_llm.args.admin_args import AdminArgs
from taco_llm.args.compatibility import COMPATIBILITY
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import flag_fields, given
from taco_llm.args.gateway_args import GatewayArgs
from taco_llm.args.parser import Parser
from taco_llm.args.redis_args import RedisArgs
from taco_llm.args.scheduler_args import SchedulerArgs
from taco_llm.cli.main import build_parser, main
from taco_llm.cli.options import collect
from taco_llm.supervisor.child_message import decode_config, encode_config
from taco_proto.config import GatewayConfig, RedisConfig, SchedulerConfig
from taco_proto.errors import ConfigurationError

COMMANDS = (
    *("serve", "gateway", "scheduler", "worker", "draft-worker", "version"),
    *("chat", "complete"),
    *("bench serve", "bench throughput", "bench latency"),
    *("keys add n", "keys list", "keys revoke n", "keys import f"),
    *("certificates init d", "certificates issue d worker"),
    *("license keygen", "license issue", "license serve"),
)


def parse(*argv: str) -> dict[str, Any]:
    namespace = build_parser().parse_args(argv)
    return collect(namespace.parser, namespace)


def subparser(command: str) -> Parser:
    namespace = build_parser().parse_args(command.split())
    assert isinstance(namespace.parser, Parser)
    return namespace.parser


def flags_of(command: str) -> set[str]:
    actions = subparser(command)._actions
    return {action.dest for action in actions if action.help is not argparse.SUPPRESS}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_flag_with_a_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main([*command.split(), "--help=all"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    for action in subparser(command)._actions:
        if action.help == argparse.SUPPRESS:  # a former name
            continue
        assert action.help, f"{command} {action.dest} has no help"
        names = action.option_strings
        if isinstance(action, argparse.BooleanOptionalAction):
            names = names[:1]
        assert all(option in text for option in names)


def test_help_notes_match_the_flags_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for command in ("", "chat", "serve"):
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
        texts[command] = capsys.readouterr().out
    assert "GROUP" not in texts[""]
    assert "--help=GROUP" in texts["chat"]
    assert "Every switch" not in texts["chat"]
    assert "Every switch" in texts["serve"]


def shown_flags(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit):
        main(command.split())
    return re.findall(r"^  (?:-\w, |-\w \S+, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)


def test_the_short_help_of_serve_shows_at_most_90_flags(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = shown_flags("serve --help", capsys)
    assert 50 < len(short) <= 90
    everything = shown_flags("serve --help=all", capsys)
    assert set(short) < set(everything)
    assert {"--redis-timeout", "--rope-theta", "--middleware"} <= set(everything) - set(short)
    assert "--redis-timeout" in shown_flags("serve --help=redis", capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_a_clear_metavar(command: str) -> None:
    for action in subparser(command)._actions:
        if action.help == argparse.SUPPRESS or action.nargs == 0 or not action.option_strings:
            continue
        assert action.metavar or action.choices, f"{command} {action.dest}"


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("serve m", "disable-log-stats", "log_stats"),
        ("scheduler", "disable-log-stats", "log_stats"),
        ("serve m", "apc-offload-not-lazy", "apc_offload_lazy"),
        ("serve m", "disable-logprobs-during-spec-decoding", "logprobs_during_spec_decoding"),
        ("bench serve", "disable-tqdm", "progress"),
        ("bench latency m", "disable-tqdm", "progress"),
    ],
)
def test_former_names_of_switches_still_work(
    command: str, old: str, new: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = command.split()
    path = tmp_path / "config.yaml"
    path.write_text(f"{old}: true\n")
    for given_flags, expected in (
        ([f"--{old}"], False),
        ([f"--{old}=True"], False),
        ([f"--{old.replace('-', '_')}", "false"], True),
        ([f"--no-{old}"], True),
        ([f"--no-{new.replace('_', '-')}"], False),
        (["--config", str(path)], False),
    ):
        assert parse(*argv, *given_flags)[new] is expected, given_flags
    assert f"--{old}" not in shown_flags(f"{command} --help=all", capsys)


def test_former_names_of_arguments_still_work(tmp_path: Path) -> None:
    old: dict[str, Any] = {"disable_log_stats": True, "apc_offload_not_lazy": None}
    args = EngineArgs(model="demo", **old)
    assert (args.log_stats, args.apc_offload_lazy, args.given) == (
        False,
        True,
        {"model", "log_stats"},
    )
    both: dict[str, Any] = {"disable_log_stats": True, "log_stats": True}
    with pytest.raises(TypeError, match="disable_log_stats is the former name of log_stats"):
        EngineArgs(model="demo", **both)


def test_serve_takes_every_field_of_the_tables() -> None:
    tables = {
        item.name for table in (EngineArgs, GatewayArgs, RedisArgs) for item in flag_fields(table)
    }
    assert tables <= flags_of("serve")
    assert set(COMPATIBILITY) <= flags_of("serve")


def test_each_service_takes_its_own_flags_only() -> None:
    assert "port" in flags_of("gateway")
    assert "port" not in flags_of("worker")
    assert "block_size" in flags_of("worker")
    assert "block_size" not in flags_of("gateway")
    assert "max_num_seqs" in flags_of("worker") & flags_of("scheduler")
    assert "model" not in flags_of("scheduler")


def test_the_parse_holds_only_given_options() -> None:
    assert parse("serve", "demo", "--port", "9000", "--max_num_seqs=4") == {
        "model": "demo",
        "port": 9000,
        "max_num_seqs": 4,
    }


def test_switches_accept_a_value_and_a_no_form() -> None:
    assert parse("serve", "m", "--enable-prefix-caching=False")["enable_prefix_caching"] is False
    assert parse("serve", "m", "--no-enable-prefix-caching")["enable_prefix_caching"] is False
    assert parse("serve", "m", "--enable-chunked-prefill=true")["enable_chunked_prefill"] is True
    assert parse("serve", "--enforce-eager", "m") == {"enforce_eager": True, "model": "m"}


def test_flags_with_several_values() -> None:
    values = parse("serve", "m", "--api-key", "a", "--api-key=b", "--served-model-name", "x", "y")
    assert GatewayArgs(**given(GatewayArgs, values)).api_key == ("a", "b")
    assert EngineArgs(**given(EngineArgs, values)).served_model_name == ("x", "y")
    origins = parse("serve", "m", "--allowed-origins", '["http://a", "http://b"]')
    assert origins["allowed_origins"] == ("http://a", "http://b")


def test_flags_override_the_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: m\nport: 9000\nserved_model_name: [a, b]\nenable-prefix-caching: false\n"
        "log-stats: false\nrope-scaling: {rope_type: linear, factor: 2.0}\ndtype: float\n"
    )
    values = parse("serve", "--config", str(path), "--port", "9001", "--log-stats")
    assert values == {
        "model": "m",
        "port": 9001,
        "served_model_name": ["a", "b"],
        "enable_prefix_caching": False,
        "log_stats": True,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "dtype": "float",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("bogus: 1\n", "unrecognized arguments: --bogus=1"),
        ("port: many\n", "invalid int value"),
        ("- port\n", "must be a YAML mapping"),
        ("port: [\n", "is not valid YAML"),
        ("config: other.yaml\n", "names another configuration file"),
        ("model: other\n", ""),
    ],
)
def test_a_bad_configuration_file_is_a_one_line_error(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    argv = ["serve", str(tmp_path / "no-model"), "--config", str(path)]
    assert_one_line_error(argv, message, capsys)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "COMMAND"),
        (["serve"], "MODEL is needed"),
        (["serve", "demo", "--bogus"], "unrecognized arguments: --bogus"),
        (["serve", "demo", "--max-model", "5"], "unrecognized arguments"),
        (["serve", "demo", "--quantization", "none-such"], "'none-such' is not available"),
        (["serve", "demo", "--port", "x"], "invalid int value"),
        (["serve", "demo", "--port", "70000"], "port must be between"),
        (["serve", "demo", "--grpc-port", "8000"], "port and --grpc-port are both 8000"),
        (["serve", "demo", "--model", "other"], "two models are given"),
        (["serve", "demo", "--enable-chunked-prefill=False"], "cannot be turned off"),
        (["serve", "demo", "--block-size", "7"], "7 is not available; choose from 8, 16, 32"),
        (["serve", "demo", "--max-num-seqs", "0"], "--max-num-seqs must be an integer"),
        (["serve", "demo", "--max-forced-tokens", "33"], "--max-forced-tokens must be an integer"),
        (["serve", "demo", "--max-waiting-requests", "0"], "--max-waiting-requests must be"),
        (["serve", "demo", "--max-waiting-tokens", "0"], "--max-waiting-tokens must be"),
        (["serve", "demo", "--admin-port", "8000"], "port and --admin-port are both 8000"),
        (["serve", "demo", "--admin-listen", "here"], "--admin-listen must be host:port or"),
        (["scheduler", "--admin-port", "0"], "--admin-port must be between 1 and 65535, got 0"),
        (["scheduler", "--admin-listen", "here"], "--admin-listen must be host:port or"),
        (["scheduler", "--admin-listen", ":70000"], "--admin-listen must be between 1 and 65535"),
        (
            ["serve", "demo", "--admin-port", "9", "--admin-listen", "unix:/x"],
            "both set the admin listener",
        ),
        (["serve", "demo", "--min-ready-workers", "0"], "--min-ready-workers must be at least 1"),
        (["serve", "demo", "--queue-timeout", "0"], "--queue-timeout must be above 0"),
        (["serve", "demo", "--drain-timeout", "inf"], "--drain-timeout must be above 0"),
        (["serve", "demo", "--step-timeout", "0"], "--step-timeout must be above 0"),
        (["serve", "demo", "--worker-drain-timeout", "nan"], "--worker-drain-timeout must be"),
        (["serve", "demo", "--rope-scaling", "{"], "not JSON"),
        (["serve", "demo", "--device", "tpu"], "device must be auto, cpu, cuda or cuda:N"),
        (["serve", "demo", "--attention-backend", "flash"], "'flash' is not available"),
        (["serve", "demo", "--gpu-memory-utilization", "0"], "must be above 0 and at most 1"),
        (["serve", "demo", "--gpu-memory-utilization", "nan"], "must be above 0 and at most 1"),
        (["serve", "demo", "--cpu-offload-gb", "-1"], "--cpu-offload-gb must be a number from 0"),
        (["serve", "demo", "--cpu-offload-gb", "inf"], "--cpu-offload-gb must be a number from 0"),
        (["serve", "demo", "--max-seq-len-to-capture", "0"], "--max-seq-len-to-capture must be"),
        (["serve", "demo", "--skip-tokenizer-init", "--tokenizer", "x"], "contradict"),
        (["serve", "demo", "--ssl-keyfile", "/no/such/file"], "is not a file"),
        (["serve", "demo", "--config", "/no/such/file.yaml"], "cannot read"),
        (["serve", "/no/such/model"], "does not exist"),
        (
            ["plan", "org/model"],
            "no directory org/model: taco_llm plan takes a model's directory",
        ),
        (["plan", "demo-medsua"], "did you mean demo-medusa?"),
        (["worker", "demo"], "--scheduler is needed"),
        (["sevre", "m"], "there is no command 'sevre'; did you mean serve?"),
        (["xyz"], "there is no command 'xyz'; choose from serve, chat, complete"),
        (["--help=http"], "--help=GROUP belongs to a command: taco_llm COMMAND --help=http"),
        (["gateway", "--scheduler", "unix:/x"], "MODEL is needed"),
    ],
)
def test_a_wrong_command_is_a_one_line_error(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_line_error(argv, message, capsys)


def assert_one_line_error(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(argv)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else -1
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "error: " in captured.err
    assert message in captured.err


def test_api_keys_come_from_the_environment_unless_flags_give_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = EngineArgs(model=str(tmp_path)).model_config()
    monkeypatch.setenv("TACO_API_KEY", "a,b")
    assert GatewayArgs().gateway_config(model, "unix:/x").api_keys == ("a", "b")
    monkeypatch.setenv("VLLM_API_KEY", "d,e")
    assert GatewayArgs().gateway_config(model, "unix:/x").api_keys == ("a", "b")
    monkeypatch.delenv("TACO_API_KEY")
    assert GatewayArgs().gateway_config(model, "unix:/x").api_keys == ("d,e",)
    assert GatewayArgs(api_key=("c",)).gateway_config(model, "unix:/x").api_keys == ("c",)


def test_the_address_of_the_admin_listener(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = EngineArgs(model=str(tmp_path)).model_config()
    for args, default, expected, has_port in [
        (GatewayArgs(), None, None, False),
        (GatewayArgs(), "unix:/d", "unix:/d", False),
        (GatewayArgs(admin_listen="unix:/x"), "unix:/d", "unix:/x", False),
        (GatewayArgs(admin_listen="127.0.0.1:9"), "unix:/d", "127.0.0.1:9", True),
        (GatewayArgs(admin_port=9), "unix:/d", "0.0.0.0:9", True),
        (GatewayArgs(host="::1", admin_port=9), None, "[::1]:9", True),
    ]:
        config = args.gateway_config(model, "unix:/s", admin_listen=default)
        assert (config.admin_listen, config.has_admin_port) == (expected, has_port)


def test_queue_limits_reach_the_services(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    values = parse(
        *("serve", str(tmp_path), "--max-waiting-tokens", "77", "--api-key-file", "keys.json"),
        *("--queue-timeout", "5", "--drain-timeout", "2.5", "--min-ready-workers", "3"),
        "--share-prefix-cache",
    )
    engine = EngineArgs(**given(EngineArgs, values))
    assert engine.scheduler_config().max_waiting_tokens == 77
    args = GatewayArgs(**given(GatewayArgs, values))
    config = args.gateway_config(engine.model_config(), "unix:/s")
    assert config.api_key_file == str(Path("keys.json").absolute())
    assert (config.queue_timeout, config.drain_timeout) == (5.0, 2.5)
    assert (config.min_ready_workers, config.share_prefix_cache) == (3, True)


def test_the_redis_url_reaches_gateway_and_scheduler(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    flags = [
        *("--redis-url", "rediss://me@host:6380/2", "--redis-password-file", "password"),
        *("--redis-timeout", "0.5"),
    ]
    expected = RedisConfig(
        url="rediss://me@host:6380/2",
        password_file=str(Path("password").absolute()),
        timeout=0.5,
    )
    for command in ("serve", "gateway", "scheduler"):
        values = parse(command, *flags)
        redis = RedisArgs(**given(RedisArgs, values)).redis_config()
        assert redis == expected
    model = EngineArgs(model=str(tmp_path)).model_config()
    gateway = GatewayArgs().gateway_config(model, "unix:/s", redis=redis)
    scheduler = SchedulerArgs().scheduler_config("unix:/s", redis)
    for kind, config in ((GatewayConfig, gateway), (SchedulerConfig, scheduler)):
        assert config.redis == expected
        values = json.loads(encode_config(config, parent=1))["config"]
        assert decode_config(kind, values) == config
    assert RedisArgs().redis_config() is None


def test_api_keys_come_from_redis_or_from_flags_but_not_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = EngineArgs(model=str(tmp_path)).model_config()
    redis = RedisConfig(url="redis://host")

    def config(**arguments: Any) -> GatewayConfig:
        return GatewayArgs(redis_keys=True, **arguments).gateway_config(model, "s", redis=redis)

    assert config().redis_keys
    with pytest.raises(ConfigurationError, match="redis_keys needs redis_url"):
        GatewayArgs(redis_keys=True).gateway_config(model, "s")
    with pytest.raises(ConfigurationError, match="contradict"):
        config(api_key=("sesame-7",))
    with pytest.raises(ConfigurationError, match="contradict"):
        config(api_key_file="keys.json")
    monkeypatch.setenv("TACO_API_KEY", "sesame-7")
    with pytest.raises(ConfigurationError, match="contradict"):
        config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"redis_url": "http://host"}, "must begin with redis://"),
        ({"redis_url": "redis://:sesame-7@host:many"}, "is not a valid URL"),
        ({"redis_url": "unix://"}, "must name a socket"),
        ({"redis_password_file": "f"}, "needs redis_url"),
        ({"redis_timeout": 0.0}, "redis_timeout must be above 0"),
        ({"redis_url": "redis://:sesame-7@host", "redis_password_file": "f"}, "names another"),
    ],
)
def test_invalid_redis_arguments_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        RedisArgs(**arguments)
    assert "sesame-7" not in str(caught.value)


def test_given_options_reach_the_configurations(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    args = EngineArgs(
        model=str(tmp_path), num_gpu_blocks_override=8, block_size=32, enable_prefix_caching=False
    )
    worker = args.worker_config("unix:/x", "w")
    assert (worker.num_blocks, worker.block_size, worker.device) == (8, 32, "auto")
    for_gpus: dict[str, Any] = {
        "device": "cuda:1",
        "attention_backend": "xformers",
        "gpu_memory_utilization": 0.5,
        "conservative_dry_run": True,
        "enforce_eager": True,
        "max_seq_len_to_capture": 100,
        "cpu_offload_gb": 1.5,
        "max_num_batched_tokens": 512,
        "max_forced_tokens": 3,
    }
    worker = EngineArgs(model=str(tmp_path), **for_gpus).worker_config("unix:/x", "w")
    assert {name: getattr(worker, name) for name in for_gpus} == for_gpus
    assert worker.model.served_name == str(tmp_path)
    assert args.scheduler_config("unix:/x").enable_prefix_caching is False
    assert SchedulerArgs().scheduler_config().max_num_batched_tokens == 2048


@pytest.mark.parametrize("threshold", [None, 0, 300])
def test_the_long_prefill_threshold_reaches_the_scheduler(threshold: int | None) -> None:
    config = SchedulerArgs(long_prefill_token_threshold=threshold).scheduler_config()
    assert config.long_prefill_token_threshold == threshold


def test_a_negative_long_prefill_threshold_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="long_prefill_token_threshold must be an integer"):
        SchedulerArgs(long_prefill_token_threshold=-1)


def test_a_directory_without_config_json_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"contains no config\.json"):
        EngineArgs(model=str(tmp_path)).model_config()


@pytest.mark.process
def test_a_closed_pipe_ends_the_command_without_a_traceback() -> None:
    """As `taco_llm bench ... | head` does it."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "taco_llm.cli.main", "version"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interrupt_before_the_command_runs_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt() -> Parser:
        raise KeyboardInterrupt

    monkeypatch.setattr("taco_llm.cli.main.build_parser", interrupt)
    assert main(["version"]) == 130


def test_the_info_lines_of_torch_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.NOTSET, "torch")  # restores the level at the end
    with caplog.at_level(logging.INFO):
        assert main(["version"]) == 0
        logging.getLogger("torch._subclasses.fake_tensor").info("FakeTensor cache stats:")
    assert not caplog.records


def test_the_first_process_of_a_container_can_be_ended_while_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    try:
        assert main(["version"]) == 0
        with pytest.raises(SystemExit, match="143"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1:7100", "127.0.0.1:9000"),
        ("[::1]:7100", "[::1]:9000"),
        ("10.1.2.3:7100", "10.1.2.3:9000"),
        ("0.0.0.0:7100", ":9000"),
        ("[::]:7100", ":9000"),
        ("unix:/run/taco", "127.0.0.1:9000"),
    ],
)
def test_a_schedulers_admin_port_uses_the_host_of_listen(listen: str, expected: str) -> None:
    assert AdminArgs(admin_port=9000).for_listener(listen) == expected
    assert AdminArgs(admin_listen="unix:/a").for_listener(listen) == "unix:/a"
    assert AdminArgs().for_listener(listen) is None


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("127.0.0.1:7100", "127.0.0.1:9000"),
        ("localhost:7100", "127.0.0.1:9000"),
        ("[::1]:7100", "127.0.0.1:9000"),
        ("unix:/run/taco", "127.0.0.1:9000"),
        ("scheduler:7100", ":9000"),  # a kubelet and Prometheus are elsewhere, too
    ],
)
def test_a_workers_admin_port_is_on_loopback_beside_a_local_scheduler(
    scheduler: str, expected: str
) -> None:
    assert AdminArgs(admin_port=9000).for_worker(scheduler) == expected
    assert AdminArgs(admin_listen="[::]:1").for_worker(scheduler) == "[::]:1"
    assert AdminArgs().for_worker(scheduler) is None
