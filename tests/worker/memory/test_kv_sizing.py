from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from support.checkpoints import make_checkpoint
from taco_kernels.kv_entry import KVEntry
from taco_kernels.kv_format import KVFormat
from taco_worker.attention.kv_cache import KVCache, bytes_per_block
from taco_worker.devices.cpu_memory import available_cpu_memory
from taco_worker.memory.kv_sizing import num_cpu_blocks
from taco_worker.models.config import load_hf_config


def test_views_share_memory_and_overlap_nowhere() -> None:
    cache = KVCache([KVEntry(2, 4, 4)] * 3, 5, 8, KVFormat(torch.float32), torch.device("cpu"))
    views = [view(layer) for layer in range(3) for view in (cache.key, cache.value)]
    for number, view in enumerate(views, start=1):
        assert view.shape == (5, 8, 2, 4)
        assert view[0].is_contiguous()
        view.fill_(number)
    for number, view in enumerate(views, start=1):
        assert bool((view == number).all())


def test_a_block_of_all_layers_is_contiguous() -> None:
    cache = KVCache([KVEntry(2, 4, 4)] * 3, 5, 8, KVFormat(torch.float32), torch.device("cpu"))
    block = 3 * 2 * cache.key(0)[0].nbytes
    for view in (view(layer) for layer in range(3) for view in (cache.key, cache.value)):
        for index in range(5):
            offset = view[index].data_ptr() - cache.key(0).data_ptr()
            assert index * block <= offset < (index + 1) * block


def test_entries_of_different_shapes() -> None:
    """Two layers of one size, a latent, and wide keys: tokens move with all of their numbers."""
    entries = [KVEntry(2, 4, 4), KVEntry(2, 4, 4), KVEntry(1, 10, 6, latent=True), KVEntry(1, 3, 5)]
    cache = KVCache(entries, 3, 8, KVFormat(torch.float32), torch.device("cpu"))
    assert cache.rows.shape == (3, bytes_per_block(entries, 8, KVFormat(torch.float32)))
    assert cache.rows.shape[1] == 8 * 4 * (16 + 16 + 10 + 8)
    views = [view(index) for index in range(4) for view in (cache.key, cache.value)]
    for number, view in enumerate(views):
        view.fill_(number)
    assert bool((cache.key(2)[..., :6] == 5).all())  # the value, which is a part of the key
    assert bool((cache.key(2)[..., 6:] == 4).all())
    before = [view.clone() for view in views]
    for view in views:
        view[2, 5] += 100
    cache.copy_tokens(torch.tensor([2 * 8 + 5, 0]), torch.tensor([3, 8 + 1]))
    for view, old in zip(views, before, strict=True):
        assert torch.equal(view[0, 3], view[2, 5])
        assert torch.equal(view[1, 1], old[0, 0])
        assert torch.equal(view[0, 4], old[0, 4])


def test_unwritten_memory_is_not_allocated() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    cache = KVCache([KVEntry(4, 64, 64)], 2**16, 16, KVFormat(torch.bfloat16), torch.device("cpu"))
    size = cache.key(0).nbytes + cache.value(0).nbytes
    assert size == 2**30
    assert process.memory_info().rss - before < size / 16


def test_bytes_per_block_is_what_a_cache_takes(tmp_path: Path) -> None:
    config = load_hf_config(make_checkpoint(tmp_path, num_key_value_heads=1)).plan
    cache = KVCache(
        config.kv_entries,
        7,
        32,
        KVFormat(torch.bfloat16),
        torch.device("cpu"),
    )
    views = [view(i) for i in range(config.num_layers) for view in (cache.key, cache.value)]
    taken = sum(view.nbytes for view in views)
    assert 7 * bytes_per_block(config.kv_entries, 32, KVFormat(torch.bfloat16)) == taken


def test_a_full_batch_is_enough() -> None:
    def blocks(available_bytes: int) -> int:
        return num_cpu_blocks(
            1000,
            block_size=16,
            max_num_seqs=4,
            max_model_len=100,
            available_bytes=available_bytes,
        )

    assert blocks(10**9) == 4 * 7
    assert blocks(20_000) == 10
    assert blocks(2_000) == 1
    with pytest.raises(ValueError, match="no memory for the KV cache"):
        blocks(1_999)


def test_available_memory_in_a_container(tmp_path: Path) -> None:
    assert available_cpu_memory(tmp_path) > 2**20
    (tmp_path / "memory.max").write_text("max\n")
    assert available_cpu_memory(tmp_path) > 2**20
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert available_cpu_memory(tmp_path) == 400
    (tmp_path / "memory.current").write_text("1400\n")
    assert available_cpu_memory(tmp_path) == 0
