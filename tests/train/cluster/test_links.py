"""Costs of links: the fit, what is derived from it, its file, and who meets whom."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_train.cluster.links import LinkCache, LinkCost, LinkCosts, fit
from taco_train.cluster.probe import schedule

COSTS = LinkCosts(("a", "b", "c"), {(0, 1): LinkCost(1e-4, 1e-9), (0, 2): LinkCost(1e-3, 8e-9)})


@given(st.floats(1e-6, 1e-1), st.floats(1e-11, 1e-6))
def test_fit_finds_what_made_the_samples(alpha: float, beta: float) -> None:
    cost = LinkCost(alpha, beta)
    found = fit([(size, cost.seconds(size)) for size in (64, 10**5, 10**6)])
    for size in (64, 10**6):
        assert found.seconds(size) == pytest.approx(cost.seconds(size), rel=1e-3)


def test_fit_gives_nothing_below_zero() -> None:
    assert fit([(1000, 1e-3), (2000, 3e-3)]).alpha == 0
    assert fit([(1000, 2e-3), (2000, 1e-3)]).beta == 0


def test_a_pair_that_never_met_costs_what_is_usual() -> None:
    assert COSTS.between("b", "a") == LinkCost(1e-4, 1e-9)
    usual = COSTS.between("b", "c")
    assert usual.seconds(0) == pytest.approx(5.5e-4)
    assert usual.beta == pytest.approx(4.5e-9)
    with pytest.raises(ValueError, match="no link to itself"):
        COSTS.between("a", "a")


def test_the_slowest_link_limits_a_ring() -> None:
    assert COSTS.slowest() == LinkCost(1e-3, 8e-9)
    assert COSTS.slowest(["a", "b"]) == LinkCost(1e-4, 1e-9)
    assert LinkCosts(("a",), {}).slowest() == LinkCost(0, 0)
    assert LinkCost(0, 8e-9).bits_per_second == pytest.approx(1e9)


def test_the_file_keeps_costs_by_hosts(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "links.json"
    cache = LinkCache.of({"TACO_TRAIN_LINK_CACHE": str(path)})
    assert cache.get("x") is None
    cache.put("x", COSTS)
    cache.put("y", LinkCosts(("q",), {}))
    assert cache.get("x") == COSTS
    assert cache.get("z") is None
    assert [file.name for file in path.parent.iterdir()] == ["links.json"]
    entries = json.loads(path.read_text())
    entries["x"]["measured_at"] -= 25 * 3600
    path.write_text(json.dumps(entries))
    assert cache.get("x") is None
    assert cache.get("y") == LinkCosts(("q",), {})


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', '{"x": {"measured_at": 1e99}}', "{"])
def test_a_damaged_file_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "links.json").write_text(text)
    cache = LinkCache(tmp_path / "links.json")
    assert cache.get("x") is None
    cache.put("x", COSTS)
    assert cache.get("x") == COSTS


def test_where_the_file_is() -> None:
    assert LinkCache.of({"XDG_CACHE_HOME": "/c"}).path == Path("/c/taco_train/links.json")
    assert LinkCache.of({"TACO_TRAIN_LINK_CACHE": ""}).path is None
    nowhere = LinkCache.of({"TACO_TRAIN_LINK_CACHE": ""})
    nowhere.put("x", COSTS)
    assert nowhere.get("x") is None
    LinkCache(Path("/proc/no/such/file")).put("x", COSTS)  # training does not fail over it


@given(st.integers(1, 17))
def test_every_two_hosts_meet_once(num_hosts: int) -> None:
    rounds = schedule(num_hosts)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == sorted(combinations(range(num_hosts), 2))
    for pairs in rounds:
        hosts = [host for pair in pairs for host in pair]
        assert len(hosts) == len(set(hosts))
