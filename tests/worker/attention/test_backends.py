"""All attention back ends against the naive reference, and selection by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import taco_kernels
from support import triton_interpreter
from support.attention_batch import LAYER, Batch
from support.xformers_operators import MaterializedOperators
from taco_kernels.attention_options import BlockSparse
from taco_kernels.kv_entry import EntryScales
from taco_kernels.kv_format import KVFormat, quantize, quantize_rows
from taco_worker.attention.backend import (
    AttentionBackend,
    create_attention_backend,
    default_attention_backend,
    require_support,
)
from taco_worker.attention.xformers_backend import XformersAttention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
triton_interpreter.install()
# A GPU's float32 products are less exact.
ON_GPU = triton_interpreter.DEVICE == CUDA
DTYPE = torch.float16 if ON_GPU else torch.float32
CLOSE: dict[str, Any] = {"atol": 3e-3, "rtol": 3e-3} if ON_GPU else {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture
def default_device() -> Iterator[None]:
    """Create a test's tensors on the back end's device."""
    with triton_interpreter.DEVICE:
        yield


def _xformers(can_run: bool) -> AttentionBackend:
    if ON_GPU:
        return create_attention_backend("xformers")
    return XformersAttention(MaterializedOperators(lambda _: can_run))


BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "torch": partial(create_attention_backend, "torch"),
    "triton": partial(create_attention_backend, "triton"),
    "xformers over blocks": partial(_xformers, True),
    "xformers over copies": partial(_xformers, False),
}

DECODES = [(0, 1), (15, 1), (16, 1), (70, 1)]
PREFILLS = [(0, 7), (0, 16), (33, 5)]
MIXED = [(20, 1), (0, 9), (47, 1), (30, 3), (5, 1)]
BATCHES = {
    "decodes": Batch(DECODES),
    "one decode": Batch([(31, 1)], num_kv_heads=2, group_size=1),
    "prefills": Batch(PREFILLS, num_kv_heads=2, group_size=3, head_dim=16),
    "prefills without context": Batch([(0, 5), (0, 18)]),
    "mixed": Batch(MIXED, num_kv_heads=2, group_size=7, head_dim=16),
    "mixed, small blocks": Batch(MIXED, block_size=8),
    "mixed, large blocks": Batch(MIXED, block_size=32),
    "windowed decodes": Batch(DECODES, num_kv_heads=2, window=10),
    "windowed mixed": Batch([(40, 1), (40, 9), (3, 1), (0, 12)], window=6),
    "window of one": Batch([(17, 1), (3, 4)], window=1),
    "window beyond everything": Batch([(17, 1), (3, 4)], window=1000),
    "idle sequences": Batch([(20, 1), (9, 0), (4, 3)]),
    "log-n scaling": Batch(MIXED, log_n=12),
}
EIGHT_BIT = {
    "e4m3, scales of entries": KVFormat(torch.float8_e4m3fn, (EntryScales(0.5, 0.5),) * 3),
    "e4m3": KVFormat(torch.float8_e4m3fn),
    "e5m2": KVFormat(torch.float8_e5m2),
    "int8": KVFormat(torch.int8),
}
# What xformers lacks.
OPTIONS = {
    "a cap on scores": Batch(MIXED, num_kv_heads=2, cap=1.5, window=20),
    "ALiBi": Batch(MIXED, num_kv_heads=2, has_alibi=True),
    "attention sinks": Batch(MIXED, num_kv_heads=2, has_sinks=True),
    "block-sparse attention": Batch(MIXED, num_kv_heads=2, sparse=BlockSparse(8, 1, 3, 1)),
    "a latent KV cache": Batch(MIXED, group_size=4, head_dim=24, value_dim=16, is_latent=True),
    "keys and values of different sizes": Batch(MIXED, num_kv_heads=2, value_dim=12),
}


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_agrees_with_the_reference(make: Callable[[], AttentionBackend], batch: Batch) -> None:
    torch.manual_seed(0)
    query, cache, metadata = batch.query(DTYPE), batch.cache(DTYPE), batch.metadata()
    actual = make().attend(query, cache, LAYER, metadata, batch.options())
    expected = batch.reference(query, cache, metadata)
    torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("batch", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_options_agree_with_the_reference(name: str, batch: Batch) -> None:
    torch.manual_seed(0)
    query, cache, metadata = batch.query(DTYPE), batch.cache(DTYPE), batch.metadata()
    backend = BACKENDS[name]()
    require_support(backend, batch.options(), batch.entry())
    actual = backend.attend(query, cache, LAYER, metadata, batch.options())
    torch.testing.assert_close(actual, batch.reference(query, cache, metadata), **CLOSE)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_missing_option_is_named_at_load(option: str) -> None:
    backend, batch = _xformers(True), OPTIONS[option]
    with pytest.raises(ValueError, match=f"'xformers' does not support {option}, which this model"):
        require_support(backend, batch.options(), batch.entry())


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_query_may_be_a_view_of_a_fused_projection(make: Callable[[], AttentionBackend]) -> None:
    torch.manual_seed(0)
    batch = Batch([(20, 1), (3, 4)], num_kv_heads=2)
    cache, metadata = batch.cache(DTYPE), batch.metadata()
    fused = torch.full((5, 8, 8), torch.nan, dtype=DTYPE)
    fused[:, :4] = batch.query(DTYPE)
    actual = make().attend(fused[:, :4], cache, LAYER, metadata, batch.options())
    expected = batch.reference(fused[:, :4].contiguous(), cache, metadata)
    torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_layers_with_different_windows_share_metadata(
    make: Callable[[], AttentionBackend],
) -> None:
    torch.manual_seed(3)
    batch = Batch([(40, 1), (10, 30)])
    query, cache, metadata = batch.query(DTYPE), batch.cache(DTYPE), batch.metadata()
    backend = make()
    for window in (None, 6, None, 17):
        layer = replace(batch, window=window)
        actual = backend.attend(query, cache, LAYER, metadata, layer.options())
        expected = layer.reference(query, cache, metadata)
        torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_each_step_gets_a_new_plan(make: Callable[[], AttentionBackend]) -> None:
    torch.manual_seed(1)
    backend = make()
    for batch in (Batch([(40, 1), (10, 3)]), Batch([(10, 3), (7, 1), (40, 1)])):
        query, cache, metadata = batch.query(DTYPE), batch.cache(DTYPE), batch.metadata()
        actual = backend.attend(query, cache, LAYER, metadata, batch.options())
        expected = batch.reference(query, cache, metadata)
        torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.usefixtures("default_device")
@pytest.mark.parametrize("kv_format", EIGHT_BIT.values(), ids=EIGHT_BIT)
@pytest.mark.parametrize("is_latent", [False, True])
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_8_bit_cache_is_read(name: str, is_latent: bool, kv_format: KVFormat) -> None:
    torch.manual_seed(0)
    batch = Batch(MIXED, head_dim=24, value_dim=16, is_latent=is_latent)
    query, metadata = batch.query(DTYPE), batch.metadata()
    narrow, wide = batch.empty_cache(kv_format), batch.cache(DTYPE)
    scales = narrow.scales(LAYER)
    views = [(narrow.key, wide.key), (narrow.value, wide.value)]
    for (stored, read), scale in zip(views[: 1 if is_latent else 2], scales, strict=False):
        if isinstance(scale, torch.Tensor):
            numbers, of_tokens = quantize_rows(read(LAYER), kv_format.dtype)
            scale.copy_(of_tokens)
            read(LAYER).copy_(numbers.float() * of_tokens.unsqueeze(-1))
        else:
            numbers = quantize(read(LAYER), kv_format.dtype, scale)
            read(LAYER).copy_(numbers.float() * scale)
        stored(LAYER).copy_(numbers)
    actual = BACKENDS[name]().attend(query, narrow, LAYER, metadata, batch.options())
    expected = batch.reference(query, wide, metadata)
    torch.testing.assert_close(actual, expected, **CLOSE)


def test_defaults() -> None:
    assert default_attention_backend(CUDA) == "triton"
    assert default_attention_backend(CPU) == "torch"


def test_unknown_back_end_is_named() -> None:
    with pytest.raises(ValueError, match=r"'flash'; known: torch, triton, xformers"):
        create_attention_backend("flash")


@pytest.mark.parametrize("name", ["triton", "xformers"])
def test_an_unsupported_device_is_named_in_the_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' runs on cuda only, not on cpu: use 'torch'"):
        create_attention_backend(name, CPU)


@pytest.mark.parametrize("package", ["triton", "xformers"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    # A new import binds the package's name in its parent: that is restored too.
    if "taco_kernels.triton" in sys.modules:
        monkeypatch.setattr(taco_kernels, "triton", sys.modules["taco_kernels.triton"])
    for module in [name for name in sys.modules if name.startswith("taco_kernels.triton")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, f"taco_worker.attention.{package}_backend", raising=False)
    with pytest.raises(ValueError, match=f"needs the package {package}, which cannot be imported"):
        create_attention_backend(package, CUDA)


def test_only_the_chosen_back_end_is_imported() -> None:
    program = (
        "import sys; from taco_worker.attention.backend import create_attention_backend as create;"
        "create('torch'); print({'triton', 'xformers', 'taco_kernels.triton'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
