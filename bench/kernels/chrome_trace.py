"""Chrome's trace format, which chrome://tracing and https://ui.perfetto.dev show.

Source: Trace Event Format, Google, 2016 (complete events, `"ph": "X"`, in microseconds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.kernels.traced_step import OpName, TracedStep, span_name

Event = dict[str, Any]


def trace_document(
    steps_of: Mapping[str, Sequence[TracedStep]], names: list[OpName]
) -> dict[str, Any]:
    """The document of some kinds of steps, each kind as one process of the trace."""
    events: list[Event] = []
    for process, (title, steps) in enumerate(steps_of.items()):
        events.append(_metadata("process_name", title, process, 0))
        events += [
            _metadata("thread_name", f"thread {thread}", process, thread)
            for thread in range(len(steps[0].threads))
        ]
        # Every process begins at 0: kinds of steps are compared, and not run at the same time.
        origin = steps[0].begin
        for step in steps:
            events += _step_events(step, names, process, origin)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _step_events(step: TracedStep, names: list[OpName], process: int, origin: int) -> list[Event]:
    # The calling thread is thread 0 of the kernels.
    events = [_event("step", "host", step.begin - origin, step.end - origin, process, 0)]
    for thread, spans in enumerate(step.threads):
        for span in spans:
            begin, end = int(span["begin"]) - origin, int(span["end"]) - origin
            name = span_name(span, names)
            category = "wait" if name in ("start", "wait") else "kernel"
            event = _event(name, category, begin, end, process, thread)
            if name == "part":
                event["args"] = {"first": int(span["index"])}
            events.append(event)
    return events


def _event(name: str, category: str, begin: int, end: int, process: int, thread: int) -> Event:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "pid": process,
        "tid": thread,
    }


def _metadata(kind: str, name: str, process: int, thread: int) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
