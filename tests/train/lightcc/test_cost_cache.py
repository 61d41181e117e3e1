"""The file of measured costs: what it keeps, and that a damaged one does no harm."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from taco_train.lightcc.cost_cache import CostCache
from taco_train.lightcc.cost_model import Costs, Line

COSTS = Costs(2, 3, Line(1e-4, 1e-9), Line(2e-4, 8e-9), Line(1e-5, 1e-10), 2e-10, Line(0, 1e-9))


def test_the_file_keeps_costs_by_hosts(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "links.json"
    cache = CostCache.of({"TACO_TRAIN_LINK_CACHE": str(path)})
    assert cache.get("x") is None
    cache.put("x", COSTS)
    cache.put("y", replace(COSTS, num_hosts=3))
    assert cache.get("x") == COSTS
    assert cache.get("z") is None
    assert [file.name for file in path.parent.iterdir()] == ["links.json"]
    entries = json.loads(path.read_text())
    entries["x"]["measured_at"] -= 25 * 3600
    path.write_text(json.dumps(entries))
    assert cache.get("x") is None
    assert cache.get("y") == replace(COSTS, num_hosts=3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"x": 1}',
        '{"x": {"measured_at": 1e99}}',
        '{"x": {"measured_at": NOW, "costs": {"num_hosts": "2"}}}',
        "{",
    ],
)
def test_a_damaged_file_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "links.json").write_text(text.replace("NOW", str(time.time())))
    cache = CostCache(tmp_path / "links.json")
    assert cache.get("x") is None
    cache.put("x", COSTS)
    assert cache.get("x") == COSTS


def test_where_the_file_is() -> None:
    assert CostCache.of({"XDG_CACHE_HOME": "/c"}).path == Path("/c/taco_train/links.json")
    assert CostCache.of({"TACO_TRAIN_LINK_CACHE": ""}).path is None
    nowhere = CostCache.of({"TACO_TRAIN_LINK_CACHE": ""})
    nowhere.put("x", COSTS)
    assert nowhere.get("x") is None
    CostCache(Path("/proc/no/such/file")).put("x", COSTS)  # training does not fail over it


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run as users that only their manifest names."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert CostCache.of({}).path is None
