"""Spans that the threads of a pool record."""

import time

import numpy as np
import pytest
import torch

from support.cpu_kernels import NATIVE, kernels_of
from taco_kernels.cpu.matmul import EncodedRows, multiply
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.cpu.trace import SpanKind, Trace
from taco_kernels.library import CpuKernels


@pytest.fixture(params=[1, 2, 3])
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return kernels_of(NATIVE[0], request.param)


def product(kernels: CpuKernels) -> torch.Tensor:
    rows = EncodedRows(kernels, torch.ones(3, 64), torch.float32)
    return multiply(kernels, rows, PackedMatrix.from_tensor(kernels, torch.ones(4096, 64)))


def test_each_thread_covers_each_region_with_spans_that_nest(kernels: CpuKernels) -> None:
    begun = time.perf_counter_ns()
    with Trace(kernels) as trace:
        product(kernels)
    ended = time.perf_counter_ns()

    threads = [trace.spans(thread) for thread in range(kernels.num_threads)]
    regions = [spans[spans["kind"] == SpanKind.REGION] for spans in threads]
    for spans, own in zip(threads, regions, strict=True):
        assert len(own) == 3  # encode, pack, multiply
        assert np.array_equal(own["begin"], regions[0]["begin"])
        assert (own["begin"] >= begun).all()
        assert (own["end"] <= ended).all()
        assert (np.diff(spans["end"]) >= 0).all()
        for one in spans:
            assert one["begin"] <= one["end"]
            for other in spans:
                apart = one["end"] <= other["begin"] or other["end"] <= one["begin"]
                inside = one["begin"] >= other["begin"] and one["end"] <= other["end"]
                around = other["begin"] >= one["begin"] and other["end"] <= one["end"]
                assert apart or inside or around


def test_each_part_of_a_shared_loop_is_recorded_once(kernels: CpuKernels) -> None:
    rows = EncodedRows(kernels, torch.ones(3, 64), torch.float32)
    matrix = PackedMatrix.from_tensor(kernels, torch.ones(4096, 64))

    with Trace(kernels) as trace:
        multiply(kernels, rows, matrix)

    parts = [
        int(span["index"])
        for thread in range(kernels.num_threads)
        for span in trace.spans(thread)
        if span["kind"] == SpanKind.PART
    ]
    assert len(parts) > kernels.num_threads
    assert sorted(parts) == list(range(len(parts)))


def test_nothing_is_recorded_before_and_after(kernels: CpuKernels) -> None:
    trace = Trace(kernels)
    expected = product(kernels)
    with trace:
        pass
    assert torch.equal(product(kernels), expected)

    assert all(trace.spans(thread).size == 0 for thread in range(kernels.num_threads))


def test_a_full_trace_is_an_error_and_disturbs_nothing(kernels: CpuKernels) -> None:
    expected = product(kernels)
    with Trace(kernels, capacity=4) as trace:
        assert torch.equal(product(kernels), expected)

    with pytest.raises(ValueError, match="more than 3 spans"):
        trace.spans(0)
