"""Benchmarks whose `--save` would replace the result of another configuration."""

from types import ModuleType
from typing import Any

import pytest

from bench import record
from bench.engine import host_work
from bench.kernels import attention
from bench.worker import cpu_step, step_pairs, threads

QUANTIZED = ["--quantization", "int8"]


@pytest.mark.parametrize(
    ("script", "flags", "name"),
    [
        (attention, ["--shared", "16", "--without-torch"], "--shared"),
        (cpu_step, ["--kv-cache-dtype", "int8"], "--kv-cache-dtype"),
        (cpu_step, [*QUANTIZED, "--kv-cache-dtype", "int8"], "--kv-cache-dtype"),
        (step_pairs, ["../base", "--kv-cache-dtype", "int8"], "--kv-cache-dtype"),
        (threads, ["--model", "another"], "--model"),
        (host_work, ["--shape", "qwen2-tiny"], "--shape"),
        (host_work, QUANTIZED, "--quantization"),
        (host_work, ["--num-threads", "1"], "--num-threads"),
        (host_work, ["--no-kernels"], "--no-kernels"),
        (host_work, ["--constrained"], "--constrained"),
        (host_work, ["--served", *QUANTIZED], "--quantization"),
    ],
)
def test_a_result_has_the_configuration_of_its_name(
    script: ModuleType,
    flags: list[str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", [script.__name__, *flags, "--save"])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith(f"--save with {name} would replace the result without {name}")


@pytest.mark.parametrize(("flags", "name"), [([], "host_work"), (["--served"], "host_work_served")])
def test_host_work_of_a_server_has_its_own_result(
    flags: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: dict[str, Any] = {}

    async def run(args: Any, folder: Any) -> dict[str, Any]:
        return {"1": {}}

    monkeypatch.setattr(host_work, "run", run)
    monkeypatch.setattr(host_work, "write_tokenizer", lambda *_: None)
    monkeypatch.setattr(host_work, "number_tokenizer", lambda _: None)
    monkeypatch.setattr(host_work, "_leave_out_logprobs", lambda: None)
    monkeypatch.setattr(record, "save_by_isa", saved.__setitem__)
    monkeypatch.setattr("sys.argv", ["host_work", *flags, "--save"])
    host_work.main()
    assert saved == {name: {"microseconds_per_step": {"1": {}}}}
