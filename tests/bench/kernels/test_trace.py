"""`bench.kernels.trace` on a small model."""

import json
import sys
from itertools import pairwise
from typing import Any

import pytest

from bench.kernels import trace
from bench.kernels.barrier_waits import lost_times
from bench.kernels.traced_step import op_names
from bench.worker.cpu_step import load_worker
from taco_worker.worker import Worker

pytestmark = pytest.mark.kernels


@pytest.fixture(scope="module")
def worker() -> Worker:
    return load_worker("qwen2-tiny", None, "auto")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("trace") / "trace.json"
    with pytest.MonkeyPatch.context() as patch:
        arguments = ["--decode", "1", "3", "--prefill", "64", "--steps", "2", "--out", str(out)]
        patch.setattr(sys, "argv", ["trace", "--shape", "qwen2-tiny", *arguments])
        trace.main()
    written: dict[str, Any] = json.loads(out.read_text())
    return written


def complete(document: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The spans of each process and thread."""
    threads: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
    return threads


def test_each_kind_of_step_is_a_process(document: dict[str, Any]) -> None:
    titles = [
        event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert titles == ["decode, 1 sequences", "decode, 3 sequences", "prefill, 64 tokens"]


def test_spans_of_a_thread_nest(document: dict[str, Any]) -> None:
    for events in complete(document).values():
        open_ends: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            begin, end = event["ts"], event["ts"] + event["dur"]
            while open_ends and open_ends[-1] <= begin + 1e-6:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-6
            open_ends.append(end)


def test_each_thread_covers_each_region_of_each_step(
    document: dict[str, Any], worker: Worker
) -> None:
    threads = complete(document)
    num_threads = worker._runner._model._kernels.num_threads  # type: ignore[attr-defined]
    assert threads.keys() == {(process, t) for process in range(3) for t in range(num_threads)}
    for (process, _), events in threads.items():
        regions = [event for event in events if event["name"] == "region"]
        first = [event for event in threads[process, 0] if event["name"] == "region"]
        assert len(regions) == 4  # layers and logits of two steps
        assert [event["ts"] for event in regions] == [event["ts"] for event in first]
        for region in regions:
            inner = sorted(
                (event for event in events if event is not region and is_inside(event, region)),
                key=lambda event: (event["ts"], -event["dur"]),
            )
            outermost = [
                one for one in inner if not any(is_inside(one, o) for o in inner if o is not one)
            ]
            assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(outermost))
            assert outermost[0]["name"] == "start"
            assert outermost[0]["ts"] == region["ts"]
            assert outermost[-1]["name"] == "wait"
            assert end_of(outermost[-1]) == pytest.approx(end_of(region))


def end_of(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def is_inside(event: dict[str, Any], around: dict[str, Any]) -> bool:
    begin, end = around["ts"], around["ts"] + around["dur"]
    inside = begin <= event["ts"] and event["ts"] + event["dur"] <= end + 1e-6
    return inside and event["dur"] < around["dur"]


def test_ops_have_their_names_and_layers(document: dict[str, Any]) -> None:
    names = {event["name"] for event in document["traceEvents"]}
    assert {"embed_tokens", "final_norm", "logits", "part", "wait", "start", "step"} <= names
    for layer in (0, 1):
        expected = ("attn.qkv_proj", "rope", "write_kv", "attend", "attn.out_proj", "mlp.down_proj")
        assert {f"{op} (layer {layer})" for op in expected} <= names


def test_lost_time_names_every_barrier_once(worker: Worker) -> None:
    names = op_names(worker._runner._model._weights.program.ops)  # type: ignore[attr-defined]
    ((_, steps),) = trace.traced(worker, [2], [], 3)
    lost = lost_times(steps, names)

    assert len({one.barrier for one in lost}) == len(lost)
    assert next(one for one in lost if one.barrier == "attn.qkv_proj").count == 2
    assert next(one for one in lost if one.barrier == "end of the region").count == 2
    assert 0 < sum(one.share for one in lost) < 1
    assert lost == sorted(lost, key=lambda one: -one.milliseconds)
