"""What a message between two hosts costs: alpha seconds, and beta seconds for each byte."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

CACHE_VARIABLE = "TACO_TRAIN_LINK_CACHE"
_MAX_AGE_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class LinkCost:
    """The time of a message while one of the same size comes back.

    Attributes:
        alpha: seconds before its first byte arrives.
        beta: seconds for each byte.
    """

    alpha: float
    beta: float

    def seconds(self, num_bytes: float) -> float:
        return self.alpha + self.beta * num_bytes

    @property
    def bits_per_second(self) -> float:
        return 8 / self.beta if self.beta else float("inf")


@dataclass(frozen=True)
class LinkCosts:
    """The costs of the links between all hosts.

    Attributes:
        hosts: their names, in the order of their first ranks.
        measured: by the numbers of two hosts, the lower first.
    """

    hosts: tuple[str, ...]
    measured: Mapping[tuple[int, int], LinkCost]

    def between(self, host: str, other: str) -> LinkCost:
        """The cost between two different hosts; that of a usual pair where it was not measured."""
        first, second = sorted((self.hosts.index(host), self.hosts.index(other)))
        if first == second:
            raise ValueError(f"host {host} has no link to itself")
        return self.measured.get((first, second)) or self._usual()

    def slowest(self, hosts: Sequence[str] = ()) -> LinkCost:
        """The largest alpha and the largest beta among hosts, all by default.

        A ring is as fast as its slowest link. One host has no links: its cost is 0.
        """
        costs = [self.between(*pair) for pair in combinations(hosts or self.hosts, 2)]
        if not costs:
            return LinkCost(0.0, 0.0)
        return LinkCost(max(cost.alpha for cost in costs), max(cost.beta for cost in costs))

    def _usual(self) -> LinkCost:
        costs = self.measured.values()
        return LinkCost(
            statistics.median(cost.alpha for cost in costs),
            statistics.median(cost.beta for cost in costs),
        )

    def to_json(self) -> str:
        pairs = [[*pair, cost.alpha, cost.beta] for pair, cost in self.measured.items()]
        return json.dumps({"hosts": self.hosts, "pairs": pairs})

    @classmethod
    def from_json(cls, text: str | bytes) -> LinkCosts:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            read = json.loads(text)
            measured = {
                (int(first), int(second)): LinkCost(float(alpha), float(beta))
                for first, second, alpha, beta in read["pairs"]
            }
            return cls(tuple(map(str, read["hosts"])), measured)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no link costs: {error}") from error


def fit(samples: Sequence[tuple[int, float]]) -> LinkCost:
    """Least squares of relative errors: alpha + beta * bytes = seconds, both at least 0.

    Relative, since otherwise the noise of large messages would hide alpha.

    Args:
        samples: bytes and seconds; at least two sizes.
    """
    rows = [(1 / seconds, num_bytes / seconds) for num_bytes, seconds in samples]
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    ay, by = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    alpha = (ay * bb - by * ab) / determinant
    beta = (by * aa - ay * ab) / determinant
    if alpha < 0:
        return LinkCost(0.0, by / bb)
    if beta < 0:
        return LinkCost(ay / aa, 0.0)
    return LinkCost(alpha, beta)


class LinkCache:
    """A file of link costs by hosts and their addresses; entries are valid for a day.

    Args:
        path: the file; None caches nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LinkCache:
        """The file that TACO_TRAIN_LINK_CACHE names; empty caches nothing.

        By default it is taco_train/links.json in the user's cache folder.
        """
        named = environment.get(CACHE_VARIABLE)
        if named is not None:
            return cls(Path(named) if named else None)
        folder = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(folder, "taco_train", "links.json"))

    def get(self, key: str) -> LinkCosts | None:
        """The costs of a key; None where it is missing or old, or the file is damaged."""
        try:
            entry = self._entries()[key]
            if not 0 <= time.time() - entry["measured_at"] <= _MAX_AGE_SECONDS:
                return None
            return LinkCosts.from_json(json.dumps(entry["costs"]))
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, key: str, costs: LinkCosts) -> None:
        """Adds an entry; does nothing where the file cannot be written."""
        if self.path is None:
            return
        entry = {"measured_at": time.time(), "costs": json.loads(costs.to_json())}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=self.path.name, delete=False
            ) as file:
                json.dump({**self._entries(), key: entry}, file)
            os.replace(file.name, self.path)
        except OSError:
            return

    def _entries(self) -> dict[str, dict[str, float]]:
        if self.path is None:
            return {}
        try:
            entries = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}
