"""Measures the links between hosts: `probe` gives alpha and beta of each pair within seconds.

The first rank of every host takes part. Hosts meet in pairs, each host with one other at a time,
as teams do in a round-robin tournament. A pair exchanges messages of equal size in both directions
at once, as collectives do, so that a link or a processor that is shared by both shows.
"""

from __future__ import annotations

import hashlib
import json
import select
import socket
import struct
import time
from collections.abc import Mapping

from taco_train.cluster.links import LinkCache, LinkCost, LinkCosts, fit
from taco_train.cluster.ranks import Placement
from taco_train.cluster.store import KeyValueStore, PrefixedStore, RendezvousError

_HEADER = struct.Struct("<Q")
_TOKEN_BYTES = 16
_SMALL_BYTES = 64
_FIRST_BYTES = 1 << 16
_MAX_BYTES = 1 << 23
# Messages grow until one takes this long, and that many times as long as a small one.
_LARGE_SECONDS, _LATENCIES = 0.04, 16
_NUM_SMALL, _NUM_LARGE = 12, 3
# Each round takes some 0.3 s. With more hosts, pairs that never met get the cost of a usual pair.
_MAX_ROUNDS = 12
_PATIENCE_SECONDS = 30.0


def probe(placement: Placement, store: KeyValueStore, environment: Mapping[str, str]) -> LinkCosts:
    """The costs of the links between all hosts; all ranks call it together, and get the same.

    Measured once a day for the same hosts: rank 0 keeps them in a file (LinkCache).

    Raises:
        RendezvousError: a host cannot reach another one; the message names both.
    """
    hosts = placement.host_names
    if len(hosts) == 1:
        return LinkCosts(hosts, {})
    store = PrefixedStore("probe", store)
    firsts = [placement.hosts.index(host) for host in hosts]
    addresses = [placement.addresses[rank] for rank in firsts]
    cache, key = LinkCache.of(environment), json.dumps([hosts, addresses])
    number = store.add(f"calls/{placement.rank}", 1)
    store = PrefixedStore(str(number), store)
    if placement.rank == 0:
        cached = cache.get(key)
        store.set("cached", "" if cached is None else cached.to_json())
    cached_text = store.get("cached")
    if cached_text:
        return LinkCosts.from_json(cached_text)
    if placement.rank in firsts:
        _take_part(firsts.index(placement.rank), hosts, addresses, store)
    if placement.rank == 0:
        parts = [json.loads(store.get(f"part/{host}")) for host in range(len(hosts))]
        measured = {
            (first, second): LinkCost(alpha, beta)
            for part in parts
            for first, second, alpha, beta in part["pairs"]
        }
        costs = LinkCosts(hosts, measured)
        errors = [part["error"] for part in parts if part["error"]]
        store.set("error", "; ".join(errors))
        store.set("costs", costs.to_json())
        if not errors:
            cache.put(key, costs)
    error = store.get("error").decode()
    if error:
        raise RendezvousError(error)
    return LinkCosts.from_json(store.get("costs"))


def schedule(num_hosts: int) -> list[list[tuple[int, int]]]:
    """Rounds of pairs, the lower number first: every two hosts meet once, a host once a round.

    The circle method: host 0 stays where it is, the others move by one place a round.
    """
    places = list(range(num_hosts + num_hosts % 2))
    rounds = []
    for _ in range(len(places) - 1):
        pairs = zip(places, reversed(places[len(places) // 2 :]), strict=False)
        rounds.append(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < num_hosts))
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def _take_part(
    own: int, hosts: tuple[str, ...], addresses: list[str], store: KeyValueStore
) -> None:
    """Measures the links of this host, and tells the results."""
    pairs: list[list[float]] = []
    problem = ""
    family = socket.AF_INET6 if ":" in addresses[own] else socket.AF_INET
    with socket.create_server((addresses[own], 0), family=family) as server:
        server.settimeout(_PATIENCE_SECONDS)
        store.set(f"port/{own}", str(server.getsockname()[1]))
        ports = [int(store.get(f"port/{host}")) for host in range(len(hosts))]
        for number, matches in enumerate(schedule(len(hosts))[:_MAX_ROUNDS]):
            pair = next((pair for pair in matches if own in pair), None)
            if pair is None:
                continue
            first, second = pair
            token = hashlib.sha256(f"{number}/{pair}/{ports}".encode()).digest()[:_TOKEN_BYTES]
            try:
                if own == first:
                    with _accept(server, token) as connection:
                        cost = _lead(connection)
                    pairs.append([first, second, cost.alpha, cost.beta])
                else:
                    with _dial(addresses[first], ports[first], token) as connection:
                        _follow(connection)
            except (OSError, EOFError) as error:
                problem = (
                    f"the link between hosts {hosts[first]} ({addresses[first]}) and "
                    f"{hosts[second]} ({addresses[second]}) cannot be measured: {error}"
                )
                break
    store.set(f"part/{own}", json.dumps({"pairs": pairs, "error": problem}))


def _accept(server: socket.socket, token: bytes) -> socket.socket:
    """The connection of the other host; others are closed."""
    while True:
        connection, _ = server.accept()
        connection.settimeout(_PATIENCE_SECONDS)
        if bytes(_receive(connection, _TOKEN_BYTES)) == token:
            return _prepare(connection)
        connection.close()


def _dial(address: str, port: int, token: bytes) -> socket.socket:
    connection = socket.create_connection((address, port), _PATIENCE_SECONDS)
    connection.sendall(token)
    return _prepare(connection)


def _prepare(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(_PATIENCE_SECONDS)
    return connection


def _lead(connection: socket.socket) -> LinkCost:
    """Chooses sizes, and measures."""
    _time(connection, _SMALL_BYTES)
    enough = max(_LARGE_SECONDS, _LATENCIES * _time(connection, _SMALL_BYTES))
    size = _FIRST_BYTES
    while _time(connection, size) < enough and size < _MAX_BYTES:
        size *= 2  # meanwhile TCP finds out how fast the link is
    samples = []
    for num_bytes, repeats in (
        (_SMALL_BYTES, _NUM_SMALL),
        (size // 4, _NUM_LARGE),
        (size, _NUM_LARGE),
    ):
        # The least: other work on the processors and on the link only adds.
        samples.append((num_bytes, min(_time(connection, num_bytes) for _ in range(repeats))))
    connection.sendall(_HEADER.pack(0))
    cost = fit(samples)
    # The header travels there before the other host's message travels back.
    return LinkCost(cost.alpha / 2, cost.beta)


def _time(connection: socket.socket, num_bytes: int) -> float:
    begun = time.perf_counter()
    connection.sendall(_HEADER.pack(num_bytes))
    _exchange(connection, num_bytes)
    return time.perf_counter() - begun


def _follow(connection: socket.socket) -> None:
    while size := _HEADER.unpack(_receive(connection, _HEADER.size))[0]:
        if size > _MAX_BYTES:
            raise OSError(f"the other host wants to send {size} bytes")
        _exchange(connection, size)


def _exchange(connection: socket.socket, num_bytes: int) -> None:
    """Sends and receives as many bytes, both at the same time."""
    unsent, missing = memoryview(bytes(num_bytes)), num_bytes
    buffer = bytearray(min(num_bytes, 1 << 20))
    while unsent or missing:
        readable, writable, _ = select.select(
            [connection] if missing else [],
            [connection] if unsent else [],
            [],
            _PATIENCE_SECONDS,
        )
        if not readable and not writable:
            raise TimeoutError(f"nothing came within {_PATIENCE_SECONDS:g} s")
        if readable:
            received = connection.recv_into(buffer, min(missing, len(buffer)))
            if not received:
                raise EOFError("the other host closed the connection")
            missing -= received
        if writable:
            unsent = unsent[connection.send(unsent, socket.MSG_DONTWAIT) :]


def _receive(connection: socket.socket, num_bytes: int) -> bytearray:
    received = bytearray()
    while len(received) < num_bytes:
        data = connection.recv(num_bytes - len(received))
        if not data:
            raise EOFError("the other host closed the connection")
        received += data
    return received
