"""Placement: local and cross ranks follow from the hosts of all ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_train.cluster.ranks import Placement, place


def test_two_hosts_of_two() -> None:
    assert place(2, ["a", "a", "b", "b"], addresses=["1", "1", "2", "2"]) == Placement(
        rank=2,
        size=4,
        local_rank=0,
        local_size=2,
        cross_rank=1,
        cross_size=2,
        host="b",
        hosts=("a", "a", "b", "b"),
        addresses=("1", "1", "2", "2"),
    )
    assert place(2, ["a", "a", "b", "b"]).local_ranks == (2, 3)


def test_uneven_hosts_count_only_those_that_have_the_local_rank() -> None:
    hosts = ["a", "b", "b", "c", "c"]
    placements = [place(rank, hosts) for rank in range(5)]
    assert [(p.cross_rank, p.cross_size) for p in placements] == [
        (0, 3),
        (1, 3),
        (0, 2),
        (2, 3),
        (1, 2),
    ]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_local_and_cross_rank_name_each_rank_once(hosts: list[str]) -> None:
    placements = [place(rank, hosts) for rank in range(len(hosts))]
    assert len({(p.local_rank, p.cross_rank) for p in placements}) == len(hosts)
    for p in placements:
        assert 0 <= p.local_rank < p.local_size == hosts.count(p.host)
        assert 0 <= p.cross_rank < p.cross_size <= len(set(hosts))
        assert p.local_ranks[p.local_rank] == p.rank


def test_the_launcher_may_number_local_ranks_in_its_own_order() -> None:
    placements = [place(rank, "abab", local_ranks=[1, 0, 0, 1]) for rank in range(4)]
    assert [(p.local_rank, p.cross_rank) for p in placements] == [(1, 0), (0, 0), (0, 1), (1, 1)]


def test_local_ranks_that_repeat_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"ranks 0, 2 share host a, .* local ranks 0, 0; they must"
    ):
        place(1, "aba", local_ranks=[0, 0, 0])
