"""Turns measured values into a record: medians, ratios of pairs, and the goals that they reach.

A record holds, by workload and figure: `values` by engine, their `medians`, and `ratios` as
`{ours: {theirs: [ratio, low, high]}}`. Verdicts are not stored but computed from it.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from bench.interval import Interval, ratio_interval
from bench.peers.goals import LIMITS, Goal, best, find_goal
from bench.peers.rounds import Values


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure of one of our engines beside another engine.

    Attributes:
        theirs: the other engine; None without a peer, and then `interval` is None, too.
        candidates: the engines of which `theirs` is the best.
        interval: None for fewer than two rounds, too.
        goal: as text; empty without a goal.
        outcome: empty without a goal, or without the interval that the goal needs.
    """

    workload: str
    figure: str
    ours: str
    our_median: float
    theirs: str | None
    candidates: tuple[str, ...]
    their_median: float | None
    interval: Interval | None
    goal: str
    outcome: str


def record_of(values: Values, ours: Sequence[str]) -> dict[str, Any]:
    """Returns the record of one figure; ratios need at least two rounds."""
    return {
        "values": {name: [round(value, 3) for value in got] for name, got in values.items()},
        "medians": {name: round(statistics.median(got), 3) for name, got in values.items()},
        "ratios": {
            name: {
                other: _rounded(ratio_interval(values[name], values[other]))
                for other in values
                if other != name and len(values[name]) > 1
            }
            for name in ours
            if name in values
        },
    }


def verdicts(record: Mapping[str, Any]) -> Iterator[Verdict]:
    """Returns one verdict per workload, figure and engine of ours."""
    ours = [name for name in record["engines"] if name.startswith("taco")]
    for workload, entry in record["workloads"].items():
        for figure, measured in entry["figures"].items():
            for name in ours:
                if name in measured["medians"]:
                    yield _verdict(record, workload, figure, measured, name)


def _verdict(
    record: Mapping[str, Any], workload: str, figure: str, measured: Mapping[str, Any], ours: str
) -> Verdict:
    medians = measured["medians"]
    goal = find_goal(record["model"], ours, workload, figure)
    limit = LIMITS.get((ours, workload))
    candidates = _candidates(record["engines"], medians, ours, goal)
    theirs = best(figure, medians, candidates)
    ratio = measured["ratios"].get(ours, {}).get(theirs)
    interval = Interval(*ratio) if ratio else None
    goal_text = outcome = ""
    if limit is not None:
        goal_text, outcome = str(limit), limit.outcome(measured["values"][ours])
    elif goal is not None:
        goal_text, outcome = str(goal), goal.outcome(interval) if interval else ""
    return Verdict(
        workload,
        figure,
        ours,
        medians[ours],
        theirs,
        candidates,
        None if theirs is None else medians[theirs],
        interval,
        goal_text,
        outcome,
    )


def _candidates(
    engines: Mapping[str, Any], medians: Mapping[str, float], ours: str, goal: Goal | None
) -> tuple[str, ...]:
    """Returns the measured peers whose weights have at least as many bits as ours."""
    if goal is not None and goal.against is not None:
        return (goal.against,) if goal.against in medians else ()
    bits = engines[ours]["weight_bits"]
    return tuple(
        name
        for name, engine in engines.items()
        if not name.startswith("taco") and engine["weight_bits"] >= bits and name in medians
    )


def _rounded(interval: Interval) -> list[float]:
    return [round(value, 3) for value in astuple(interval)]
