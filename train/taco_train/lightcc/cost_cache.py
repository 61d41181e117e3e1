"""A file of measured costs by job, so that jobs on the same hosts need not measure them anew."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from taco_train.lightcc.cost_model import Costs, Line

CACHE_VARIABLE = "TACO_TRAIN_LINK_CACHE"
_MAX_AGE_SECONDS = 24 * 3600.0


class CostCache:
    """A file of costs; entries are valid for a day.

    Args:
        path: the file; None caches nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> CostCache:
        """The file that TACO_TRAIN_LINK_CACHE names; empty caches nothing.

        By default it is taco_train/links.json in the user's cache folder. Users without a home,
        such as those that only a container's manifest names, have none.
        """
        named = environment.get(CACHE_VARIABLE)
        if named is not None:
            return cls(Path(named) if named else None)
        folder = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return cls(None if folder.startswith("~") else Path(folder, "taco_train", "links.json"))

    def get(self, key: str) -> Costs | None:
        """The costs of a key; None where it is missing or old, or the file is damaged."""
        try:
            entry = self._entries()[key]
            if not 0 <= time.time() - entry["measured_at"] <= _MAX_AGE_SECONDS:
                return None
            return from_dict(entry["costs"])
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, key: str, costs: Costs) -> None:
        """Adds an entry; does nothing where the file cannot be written."""
        if self.path is None:
            return
        entry = {"measured_at": time.time(), "costs": asdict(costs)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=self.path.name, delete=False
            ) as file:
                json.dump({**self._entries(), key: entry}, file)
            os.replace(file.name, self.path)
        except OSError:
            return

    def _entries(self) -> dict[str, dict[str, Any]]:
        if self.path is None:
            return {}
        try:
            entries = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}


def from_dict(values: Mapping[str, object]) -> Costs:
    """Reads what `dataclasses.asdict` made of costs.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    read: dict[str, object] = {}
    for field in fields(Costs):
        value = values[field.name]
        if isinstance(value, dict):
            read[field.name] = Line(float(value["latency"]), float(value["per_byte"]))
        elif isinstance(value, int | float):
            read[field.name] = value
        else:
            raise TypeError(f"{field.name} is {value!r}")
    return Costs(**read)  # type: ignore[arg-type]  # the fields' types are checked by their values
