"""A worker whose KV directory is on a separate file system that is full.

The test must be able to mount one in a new user namespace. Most systems permit this to every user;
containers often do not. `test_disk.py` uses a limit of the process instead.
"""

from pathlib import Path
from typing import Any

from support.cluster import Cluster
from support.patience import until
from support.streams import Answer, ask, assert_same

Bodies = list[dict[str, Any]]
BALLAST_BYTES = 3 * 2**20
ROOM_BYTES = 2**19  # some blocks, and not those of all prompts
MOUNT = f'mount -t tmpfs -o size={BALLAST_BYTES + ROOM_BYTES} tmpfs "$0" && exec "$@"'


def about(topic: str, bodies: Bodies) -> Bodies:
    """The same requests about a topic that no earlier request had."""
    return [body | {"prompt": f"{topic} {body['prompt']}"} for body in bodies]


async def test_a_full_disk_costs_nothing_and_is_used_again_when_there_is_room(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    directory = cluster.disk_path("small")
    directory.mkdir()
    place = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(directory)]
    worker = cluster.add_worker("small", place=place)
    try:
        await cluster.until_workers(3)
        for name in ("a", "b"):
            cluster.remove(name)
        await cluster.until_workers(1)
        mounted = Path(f"/proc/{worker.pid}/root{directory}")
        ballast = mounted / "ballast"
        ballast.write_bytes(bytes(BALLAST_BYTES))

        async def is_full() -> bool:
            return "not stored or read back: No space left on device" in worker.log

        async def has_grown() -> bool:
            return count("*/*.kv") > before

        async def is_tidy() -> bool:
            return count("*/*.tmp") == 0

        def count(pattern: str) -> int:
            return len(list(mounted.glob(pattern)))

        for number in range(4):
            fresh = about(f"A disk is full, for time {number}.", bodies)
            assert not any(answer.error for answer in await ask(cluster.url(), fresh))
        await until(is_full, "a block that finds no room")
        for _ in range(2):
            async with cluster.streams(bodies) as streams:
                assert_same(await streams.finish(), expected)

        before = count("*/*.kv")
        ballast.unlink()
        fresh = about("There is room again.", bodies)
        assert not any(answer.error for answer in await ask(cluster.url(), fresh))
        await until(has_grown, "a block that is written once there is room")
        await until(is_tidy, "an end of what found no room")
        assert_same(await ask(cluster.url(), bodies), expected)
        await cluster.until_idle()
    finally:
        cluster.restore_workers()
