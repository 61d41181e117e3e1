"""Actors find each other by what they told the driver; the environment says nothing of ranks."""

import pytest

from support.patience import PATIENCE_SECONDS
from support.train_processes import RankPool
from taco_train.cluster.actors import actor_environments, describe_actor
from taco_train.cluster.launch import detect
from taco_train.cluster.ranks import Placement

pytestmark = pytest.mark.process

NODES = ["node a", "node b", "node a"]


def connect_with(variables: list[dict[str, str]], rank_of: dict[str, int]) -> Placement:
    import os

    from taco_train.collective.store import connect

    own = variables[rank_of[os.environ["RANK"]]]
    return connect(own, timeout=PATIENCE_SECONDS, generation="actors")[0]


def test_actors_connect() -> None:
    with RankPool(3) as pool:
        actors = [
            pool.run(describe_actor, node, "127.0.0.1", ranks=[rank])[0]
            for rank, node in enumerate(NODES)
        ]
        variables = actor_environments(actors)
        assert [detect(own).launcher for own in variables] == ["ray"] * 3
        # The driver numbers the actors as it likes: the last process is rank 0.
        order = {"0": 2, "1": 1, "2": 0}
        variables = actor_environments([actors[2], actors[1], actors[0]])
        placements = pool.run(connect_with, variables, order)
    assert [placement.rank for placement in placements] == [2, 1, 0]
    assert [placement.local_rank for placement in placements] == [1, 0, 0]
    assert placements[0].hosts == ("node a", "node b", "node a")
    assert placements[0].addresses == ("127.0.0.1",) * 3
