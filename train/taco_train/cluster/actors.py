"""Ranks that are actors of Ray, which has no launcher: actors say where they are, and the driver
gives each its variables.

    descriptions = ray.get([actor.execute.remote(describe_actor, node) for actor in actors])
    variables = actor_environments(descriptions)

Each actor then calls `connect(variables[rank])`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from taco_train.cluster import hosts
from taco_train.cluster.launch import environments


@dataclass(frozen=True)
class ActorAddress:
    """Where an actor is.

    Attributes:
        node: Ray's name of its node: actors of one node share memory.
        address: IP address at which other nodes reach it.
        port: free there; that of rank 0 becomes the store's.
    """

    node: str
    address: str
    port: int


def describe_actor(node: str, node_address: str) -> ActorAddress:
    """Where this process is; called in each actor.

    Args:
        node: `ray.get_runtime_context().get_node_id()`.
        node_address: `ray.util.get_node_ip_address()`; a variable that names a network interface
            (hosts.INTERFACE_VARIABLES) wins over it.
    """
    address = hosts.interface_address(os.environ) or node_address
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((address, 0))
        return ActorAddress(node, address, server.getsockname()[1])


def actor_environments(actors: Sequence[ActorAddress]) -> list[dict[str, str]]:
    """The variables of every actor, in their order, which becomes that of the ranks."""
    nodes = [actor.node for actor in actors]
    return environments(nodes, actors[0].address, actors[0].port, launcher="ray")
