"""`taco_llm serve --distributed-executor-backend ray` on a cluster of two nodes."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import openai
import psutil
import pytest

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS, wait_until
from support.ray_nodes import RayNodes, ray_nodes
from support.serving import Serving, free_port

pytestmark = pytest.mark.slow
NUM_STREAMS = 4
NUM_TOKENS = 400


def serve_on_ray(directory: Path, checkpoint: Path, *flags: str) -> Serving:
    address = f"127.0.0.1:{free_port()}"
    ray = ["--distributed-executor-backend", "ray", "--scheduler-listen", address]
    return Serving(directory, checkpoint, *ray, *flags)


@contextmanager
def streams(serving: Serving, model: Path) -> Iterator[list[Future[str]]]:
    """Completions of which a part has come each."""
    have_begun = threading.Barrier(NUM_STREAMS + 1, timeout=PATIENCE_SECONDS)

    def stream(prompt: str) -> str:
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none") as client:
            chunks = client.completions.create(
                model=str(model),
                prompt=prompt,
                max_tokens=NUM_TOKENS,
                temperature=0.0,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            first = next(chunks)
            have_begun.wait()
            return "".join(chunk.choices[0].text for chunk in [first, *chunks])

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        texts = [pool.submit(stream, f"{index} and") for index in range(NUM_STREAMS)]
        have_begun.wait()
        yield texts


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_serving_on_a_ray_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, so that tests that run beside each other start one cluster."""
    checkpoint = make_checkpoint(tmp_path / "model")
    with ray_nodes() as nodes:
        for name, value in nodes.environment.items():
            monkeypatch.setenv(name, value)
        a_worker_that_does_not_start(tmp_path, nodes)
        actors_end_with_a_killed_command(tmp_path, checkpoint, nodes)
        streams_go_on_when_a_node_and_an_actor_die(tmp_path, checkpoint, nodes)


def a_worker_that_does_not_start(tmp_path: Path, nodes: RayNodes) -> None:
    """Weights may be on the nodes alone: only the worker reads them."""
    checkpoint = make_checkpoint(tmp_path / "cut off")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with serve_on_ray(tmp_path, checkpoint) as serving:
        assert serving.wait_ended() == 2
        *_, last = serving.stderr.splitlines()
        assert last.startswith(
            f"taco_llm serve: error: worker-0 did not start: cannot read {weights}: "
        )
        assert "Traceback" not in serving.stderr
    wait_until(lambda: not nodes.actors(), "the end of every actor")


def actors_end_with_a_killed_command(tmp_path: Path, checkpoint: Path, nodes: RayNodes) -> None:
    with serve_on_ray(tmp_path, checkpoint) as serving:
        wait_until(lambda: "worker-0 runs on" in serving.stderr, "the worker")
        processes = nodes.actors() + nodes.services()
        assert len(processes) == 2
        serving.process.kill()
        wait_until(lambda: not any(map(is_alive, processes)), "the end of actor and worker")


def streams_go_on_when_a_node_and_an_actor_die(
    tmp_path: Path, checkpoint: Path, nodes: RayNodes
) -> None:
    flags = ["--data-parallel-size", "2", "--num-gpu-blocks-override", "128"]
    flags += ["--log-level", "debug"]  # else a worker that starts as it should writes no line
    with serve_on_ray(tmp_path, checkpoint, *flags) as serving:
        serving.wait_ready()
        assert (len(nodes.head.services()), len(nodes.other.services())) == (1, 1)
        prefixes = ("worker-0 | ", "worker-1 | ")
        wait_until(lambda: all(one in serving.stderr for one in prefixes), "what workers write")
        with streams(serving, checkpoint) as texts:
            expected = [text.result() for text in texts]
        # Looked up before: on a loaded machine that takes longer than the streams.
        services, actors_of_head = nodes.services(), nodes.head.actors()
        with streams(serving, checkpoint) as texts:
            # Stopped workers begin no step. Otherwise a request that moves from the first lost
            # worker to the second, and is in a step there too, counts as a poison request.
            for service in services:
                service.suspend()
            for actor in actors_of_head:
                actor.kill()
            nodes.other.kill()
            assert not serving.is_idle(), "the streams were to outlast the node"
            assert [text.result() for text in texts] == expected
        wait_until(lambda: serving.stderr.count(" attached: ") == 4, "both workers")
        assert len(nodes.head.services()) == 2
        assert "worker-0 died" in serving.stderr
        assert "worker-1 died" in serving.stderr

        services, actors = nodes.services(), nodes.actors()
        assert serving.stop() == 0
        assert not any(map(is_alive, services))
        assert "Traceback" not in serving.stderr
    wait_until(lambda: not any(map(is_alive, actors)), "the end of both actors")
