"""Compatibility with vLLM's arguments: accepted, ignored and rejected values."""

from pathlib import Path
from typing import Any

import pytest

from taco_llm import EngineArgs, SamplingParams
from taco_llm.args.compatibility import COMPATIBILITY
from taco_llm.args.engine_args import EngineArgs as RealEngineArgs
from taco_llm.args.flags import flag_fields, given
from taco_llm.cli.main import build_parser, main
from taco_llm.cli.options import collect
from taco_proto.errors import ConfigurationError

# With neutral values as vLLM has them.
NEUTRAL: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "speculative_draft_tensor_parallel_size": 1,
    "distributed_executor_backend": "mp",
    "enable_lora": False,
    "max_loras": 1,
    "max_lora_rank": 16,
    "lora_extra_vocab_size": 256,
    "lora_dtype": "auto",
    "enable_prompt_adapter": False,
    "max_prompt_adapters": 1,
    "max_prompt_adapter_token": 0,
    "guided_decoding_backend": "auto",
    "num_scheduler_steps": 1,
    "tokenizer_pool_size": 0,
    "use_v2_block_manager": False,
    "trust_remote_code": False,
    "num_lookahead_slots": 0,
    "decode_context_parallel_size": 1,
    "enable_expert_parallel": False,
    "generation_config": "auto",
    "runner": "generate",
    "task": "auto",
}
# Arguments of missing features, with a value that asks for the feature.
MISSING: dict[str, Any] = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "sequence_parallel_size": 2,
    "speculative_draft_tensor_parallel_size": 2,
    "decode_context_parallel_size": 2,
    "enable_expert_parallel": True,
    "speculative_config": {"method": "ngram"},
    "structured_outputs_config": {"backend": "xgrammar"},
    "kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"},
    "generation_config": "vllm",
    "override_generation_config": {"temperature": 0.5},
    "model_impl": "transformers",
    "task": "embed",
    "runner": "pooling",
    "enable_sleep_mode": True,
    "lora_extra_vocab_size": 1,
    "lora_dtype": "float16",
    "long_lora_scaling_factors": "1.0",
    "qlora_adapter_name_or_path": "x",
    "enable_prompt_adapter": True,
    "prompt_adapters": ["a=b"],
    "max_prompt_adapters": 4,
    "max_prompt_adapter_token": 4,
    "limit_mm_per_prompt": "image=16",
    "mm_processor_kwargs": {"a": 1},
    "override_neuron_config": {"a": 1},
    "otlp_traces_endpoint": "http://x",
    "collect_detailed_traces": "all",
}
IGNORED: dict[str, Any] = {
    "use_v2_block_manager": True,
    "num_lookahead_slots": 4,
    "num_scheduler_steps": 4,
    "multi_step_stream_outputs": True,
    "disable_async_output_proc": True,
    "disable_frontend_multiprocessing": True,
    "worker_use_ray": True,
    "ray_workers_use_nsight": True,
    "disable_custom_all_reduce": True,
    "max_parallel_loading_workers": 2,
    "tokenizer_pool_size": 2,
    "tokenizer_pool_type": "threads",
    "tokenizer_pool_extra_config": {"a": 1},
    "max_context_len_to_capture": 100,
    "disable_log_requests": True,
    "calculate_kv_scales": True,
    "async_scheduling": True,
    "compilation_config": {"level": 3},
    "disable_hybrid_kv_cache_manager": True,
    "scheduling_policy": "priority",
    "chat_template_content_format": "string",
    "enable_prompt_tokens_details": True,
    "enable_request_id_headers": True,
    "enable_lora": True,
    "max_loras": 4,
    "max_lora_rank": 64,
    "max_cpu_loras": 4,
    "fully_sharded_loras": True,
    "trust_remote_code": True,
    "code_revision": "main",
    "guided_decoding_backend": "lm-format-enforcer",
}
# serve has its own flags with these names.
OF_SERVE = ("data_parallel_size", "distributed_executor_backend", "worker_use_ray")


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


def parse(*argv: str) -> dict[str, Any]:
    namespace = build_parser().parse_args(argv)
    return collect(namespace.parser, namespace)


def flags(arguments: dict[str, Any]) -> list[str]:
    """The arguments as a command has them, switches with a value."""
    argv: list[str] = []
    for name, value in arguments.items():
        texts = value if isinstance(value, list) else [str(value).replace("'", '"')]
        argv += ["--" + name.replace("_", "-"), *texts]
    return argv


def error_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that fails with exit code 2."""
    try:
        code = main(argv)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else -1
    captured = capsys.readouterr()
    assert (code, captured.out, captured.err.count("\n")) == (2, "", 1), captured
    return captured.err


def test_the_cases_above_cover_the_whole_table() -> None:
    assert {*MISSING, *IGNORED, *OF_SERVE} == set(COMPATIBILITY)
    rejected = {name for name, argument in COMPATIBILITY.items() if argument.is_rejected}
    assert set(MISSING) <= rejected
    assert rejected.isdisjoint(IGNORED)


def test_neutral_values_are_accepted_silently(model: str, caplog: pytest.LogCaptureFixture) -> None:
    nothing: dict[str, Any] = dict.fromkeys(COMPATIBILITY)
    assert EngineArgs(model=model, **NEUTRAL) == EngineArgs(model=model)
    assert EngineArgs(model=model, **nothing) == EngineArgs(model=model)
    values = parse("worker", model, *flags(NEUTRAL))
    assert values == {"model": model}
    assert not caplog.records


def test_none_is_the_default_of_every_argument(model: str) -> None:
    names = {item.name for item in flag_fields(RealEngineArgs)} - {"model"}
    nothing: dict[str, Any] = dict.fromkeys(names)
    args = EngineArgs(model=model, **nothing)
    assert args == EngineArgs(model=model)
    assert args.given == {"model"}
    texts = [
        text
        for item in flag_fields(RealEngineArgs)
        if not isinstance(item.default, bool) and item.metadata["flag"].several is None
        for text in ("--" + item.name.replace("_", "-"), "None")
        if item.name != "model"
    ]
    assert given(RealEngineArgs, parse("serve", model, *texts)) == {"model": model}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_feature_is_named(
    name: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name}=.* is not available"):
        EngineArgs(model=model, **{name: MISSING[name]})
    line = error_of(["serve", model, *flags({name: MISSING[name]})], capsys)
    assert line.startswith(f"taco_llm serve: error: --{name.replace('_', '-')}=")
    assert "is not available" in line


@pytest.mark.parametrize("name", IGNORED)
def test_a_needless_argument_gets_one_line(
    name: str, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    effect = f"has no effect: {COMPATIBILITY[name].reason}"
    with caplog.at_level("INFO"):
        EngineArgs(model=model, **{name: IGNORED[name]})
        assert [record.getMessage() for record in caplog.records] == [f"{name} {effect}"]
        caplog.clear()
        assert parse("worker", model, *flags({name: IGNORED[name]})) == {"model": model}
        flag = "--" + name.replace("_", "-")
        assert [record.getMessage() for record in caplog.records] == [f"{flag} {effect}"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-tp", "2"], "--tensor-parallel-size=2 is not available; only 1 is"),
        (["-pp", "2"], "--pipeline-parallel-size=2 is not available; only 1 is"),
        (["-spec-draft-tp", "2"], "--speculative-draft-tensor-parallel-size=2 is not available"),
        (["-q", "none-such"], "-q/--quantization: 'none-such' is not available; choose from"),
        (["--load-format", "none-such"], "'none-such' is not available; choose from auto, pt"),
        (["--tokenizer-mode", "custom"], "'custom' is not available; choose from auto, slow"),
        (["--kv-cache-dtype", "float64"], "'float64' is not available; choose from auto"),
        (["--speculative-model-quantization", "none-such"], "'none-such' is not available"),
        (["-tp", "two"], "invalid int value: 'two'"),
        (["--device", "cpu", "--block-size", "8"], "on a CPU --block-size=8 is not available"),
        (["--prot", "8000"], "did you mean --port instead of --prot?"),
        (["--max-num-seq=8"], "did you mean --max-num-seqs instead of --max-num-seq?"),
        (["--tensor-paralel-size", "2"], "did you mean --tensor-parallel-size instead of"),
    ],
)
def test_one_line_says_what_is_wrong(
    argv: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(["serve", model, *argv], capsys)


def test_short_forms() -> None:
    argv = ["-tp", "1", "-pp=1", "-spec-draft-tp", "None", "-q", "int8"]
    assert parse("serve", "m", *argv) == {"model": "m", "quantization": "int8"}
    assert parse("serve", "m", "-q", "None") == {"model": "m"}
    assert parse("serve", "m", "-dp", "2") == {"model": "m", "data_parallel_size": 2}
    assert parse("worker", "m", "-dp", "1") == {"model": "m"}


def test_a_switch_takes_true_and_false_and_nothing_else() -> None:
    values = parse(
        *("serve", "--enable-chunked-prefill", "True", "--disable-log-stats", "m"),
        *("--disable-logprobs-during-spec-decoding", "true", "--enforce_eager", "False"),
    )
    assert values == {
        "enable_chunked_prefill": True,
        "log_stats": False,
        "logprobs_during_spec_decoding": False,
        "enforce_eager": False,
        "model": "m",
    }
    assert parse("serve", "--disable-log-stats", "--model", "True")["model"] == "True"


def test_patterns_of_files_reach_the_download(model: str) -> None:
    values = parse("serve", model, "--ignore-patterns", "original/**/*", "*.bin")
    args = EngineArgs(**given(RealEngineArgs, values))
    assert args.model_config().ignore_patterns == ("original/**/*", "*.bin")
    one: dict[str, Any] = {"ignore_patterns": "original/**/*"}
    assert EngineArgs(model=model, **one).ignore_patterns == ("original/**/*",)


def test_a_configuration_file_may_have_them(tmp_path: Path, model: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("tensor_parallel_size: 1\nenable-lora: false\nmax-loras: 1\nport: 9000\n")
    assert parse("serve", model, "--config", str(path)) == {"model": model, "port": 9000}
    path.write_text("tensor-parallel-size: 2\n")
    with pytest.raises(ConfigurationError, match="tensor_parallel_size=2 is not available"):
        parse("serve", model, "--config", str(path))


def test_unknown_arguments_are_type_errors(model: str) -> None:
    with pytest.raises(TypeError, match=r"EngineArgs got an unknown argument 'bogus'$"):
        EngineArgs(model=model, bogus=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'gpu_memory_utilization'"):
        EngineArgs(model=model, gpu_memory_utilisation=0.5)  # type: ignore[call-arg]


def test_help_leaves_compatibility_flags_out(capsys: pytest.CaptureFixture[str]) -> None:
    def help_of(*argv: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 0
        return capsys.readouterr().out

    text = help_of("serve", "--help")
    assert "--max-num-seqs" in text
    assert not any("--" + name.replace("_", "-") in text for name in MISSING)
    assert "--no-enforce-eager" not in text
    everything = help_of("serve", "--help=all")
    assert all("--" + name.replace("_", "-") in everything for name in COMPATIBILITY)
    cache = help_of("serve", "--help=kv")
    assert "--block-size" in cache
    assert "--port" not in cache
    assert "--tensor-parallel-size" in help_of("worker", "--help=compatibility")
    assert "--listen" in help_of("scheduler", "-h")


def test_an_unknown_group_of_flags_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    line = error_of(["serve", "--help=bogus"], capsys)
    assert "there is no group 'bogus' of flags; --help=GROUP takes model, device" in line


def test_sampling_parameters_have_the_order_of_vllm() -> None:
    params = SamplingParams(
        *(1, None, 0.5, 0.25, 1.5, 0.7, 0.9, 5, 0.1, 3, False, 1.0, False, "stop", [7], True),
        *(32, 2, 1, 2, True, False, True, None, True, 8, 3),
    )
    assert params == SamplingParams(
        n=1,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.5,
        temperature=0.7,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=3,
        stop="stop",
        stop_token_ids=[7],
        ignore_eos=True,
        max_tokens=32,
        min_tokens=2,
        logprobs=1,
        prompt_logprobs=2,
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        truncate_prompt_tokens=8,
        no_repeat_ngram_size=3,
    )
    assert params.with_updates(seed=4).seed == 4


def test_sampling_parameters_may_be_none() -> None:
    names = SamplingParams.__match_args__
    assert {"use_beam_search", "logits_processors", "temperature"} <= set(names)
    nothing: dict[str, Any] = dict.fromkeys(names)
    assert SamplingParams(**nothing) == SamplingParams(max_tokens=None)


def test_only_given_gpu_options_are_reported() -> None:
    options: dict[str, Any] = {"gpu_memory_utilization": 0.9, "enforce_eager": None}
    args = EngineArgs(model="demo", **options)
    assert args.worker_config().given_gpu_options == ("gpu_memory_utilization",)
    assert EngineArgs(model="demo").worker_config().given_gpu_options == ()
