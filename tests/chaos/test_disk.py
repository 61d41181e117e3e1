"""The disk of the KV tier is full."""

import resource
from typing import Any

import psutil

from support.cluster import Cluster
from support.patience import until
from support.streams import Answer, ask, assert_same

Bodies = list[dict[str, Any]]
BLOCK_BYTES = 16 * 4 * 2 * 2 * 64 * 2  # tokens, layers, keys and values, heads, their size, bf16


async def test_serving_goes_on_with_a_full_disk(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    workers = [cluster[name] for name in ("a", "b")]

    def num_warnings() -> list[int]:
        return [worker.log.count("storing or reading a KV block failed") for worker in workers]

    before = num_warnings()

    async def has_warned() -> bool:
        return num_warnings() != before

    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    for worker in workers:  # no block fits, a line of the log does
        psutil.Process(worker.pid).rlimit(psutil.RLIMIT_FSIZE, (BLOCK_BYTES // 2, unlimited[1]))
    try:
        fresh = [body | {"prompt": f"A file is full. {body['prompt']}"} for body in bodies]
        assert not any(answer.error for answer in await ask(cluster.url(), fresh))
        await until(has_warned, "a block that does not fit")
        assert_same(await ask(cluster.url(), bodies), expected)
    finally:
        for worker in workers:
            psutil.Process(worker.pid).rlimit(psutil.RLIMIT_FSIZE, unlimited)
    await cluster.until_idle()
