"""`taco_llm serve` as a command: rejected settings, signals, exit codes."""

import re
import signal
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import safetensors.torch

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import Serving


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def assert_ends_with_one_line(serving: Serving, *words: str) -> None:
    """The command exits with an error code and one error line that contains `words`."""
    with serving:
        assert serving.wait_ended() != 0
        errors = re.findall(r"^.*(?: ERROR \[| error: ).*$", serving.stderr, re.MULTILINE)
        assert len(errors) == 1, serving.stderr
        assert errors[0].startswith("taco_llm serve: error: ")
        assert all(word in errors[0] for word in words), errors[0]
        assert "Traceback" not in serving.stderr
        assert serving.stdout == ""


def assert_refused_at_once(serving: Serving, *words: str) -> None:
    """The command prints one error line and starts no process, which would print more lines."""
    with serving:
        assert serving.wait_ended() == 2
        (line,) = serving.stderr.splitlines()
        assert line.startswith("taco_llm serve: error: ")
        assert all(word in line for word in words), line
        assert serving.stdout == ""


def test_an_unknown_model_path(tmp_path: Path) -> None:
    assert_ends_with_one_line(Serving(tmp_path, "/no/such/model"), "/no/such/model")


def test_a_port_in_use(tmp_path: Path, checkpoint: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        serving = Serving(tmp_path, checkpoint, "--port", str(port))
        assert_ends_with_one_line(serving, f"127.0.0.1:{port}", "in use")


def test_missing_tensors(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model")
    file = model / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    del tensors["model.norm.weight"]
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    assert_refused_at_once(Serving(tmp_path, model), "missing tensors: model.norm.weight")


def test_a_directory_without_its_tokenizer(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model")
    (model / "tokenizer.json").unlink()
    assert_refused_at_once(Serving(tmp_path, model), "no tokenizer", "--skip-tokenizer-init")


def test_an_architecture_without_a_recipe(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model")
    config = model / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "DiffLlamaForCausalLM"))
    assert_refused_at_once(Serving(tmp_path, model), "DiffLlamaForCausalLM", "docs/models.md")


def test_a_length_that_the_model_does_not_have(tmp_path: Path, checkpoint: Path) -> None:
    assert_refused_at_once(Serving(tmp_path, checkpoint, "--max-model-len", "100000"), "100000")


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model")
    file = model / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:5].clone()
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    assert_refused_at_once(Serving(tmp_path, model), "wrong shapes: model.norm.weight")


def test_kv_blocks_beyond_the_memory(tmp_path: Path, checkpoint: Path) -> None:
    serving = Serving(tmp_path, checkpoint, "--num-gpu-blocks-override", str(10**9))
    assert_ends_with_one_line(serving, "KV blocks", "memory are available")


@pytest.mark.parametrize(("number", "num_workers"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_sigterm_drains_requests_and_stops_all_services(
    tmp_path: Path, checkpoint: Path, number: signal.Signals, num_workers: int
) -> None:
    flags = ["--num-gpu-blocks-override", "64", "--data-parallel-size", str(num_workers)]
    flags += ["--log-level", "debug"]
    with Serving(tmp_path, checkpoint, *flags) as serving:
        serving.wait_ready()
        wait_until(lambda: serving.stderr.count(" attached: ") == num_workers, "every worker")
        assert ("worker-1 | " in serving.stderr) == (num_workers > 1)
        children = psutil.Process(serving.process.pid).children()
        assert len(children) == 2 + num_workers
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none") as client:
            stream = client.completions.create(
                model=str(checkpoint),
                prompt="x",
                max_tokens=300,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            next(stream)
            serving.process.send_signal(number)
            chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert serving.process.wait(PATIENCE_SECONDS) == 0
        assert not any(child.is_running() for child in children)
        assert "Traceback" not in serving.stderr
        assert serving.stdout.count("\n") == 1


def test_children_die_with_a_killed_supervisor(tmp_path: Path, checkpoint: Path) -> None:
    with Serving(tmp_path, checkpoint, "--num-gpu-blocks-override", "64") as serving:
        serving.wait_ready()
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none") as client:
            messages: Any = [{"role": "user", "content": "Hi"}]  # renders a template, in a process
            client.chat.completions.create(model=str(checkpoint), messages=messages, max_tokens=2)
        children = psutil.Process(serving.process.pid).children(recursive=True)
        assert len(children) >= 3
        serving.process.kill()
        wait_until(lambda: not any(map(_runs, children)), "the end of every child")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
