import pytest
import torch

from taco_worker.devices.selection import check_dtype, check_weights_fit, find_device
from taco_worker.devices.transfers import Transfers
from taco_worker.memory.gpu_memory import GpuMemory, num_gpu_blocks
from taco_worker.memory.profiling_steps import largest_step

GIB = 2**30


def memory(**changes: float) -> GpuMemory:
    values = {
        "total": 80 * GIB,
        "utilization": 0.9,
        "weights": 15 * GIB,
        "activations": 2 * GIB,
        "others": GIB,
        "graphs": GIB // 2,
    }
    return GpuMemory(**{**values, **changes})  # type: ignore[arg-type]


def test_the_kv_cache_takes_the_remaining_memory() -> None:
    assert memory().kv_cache == 72 * GIB - 18 * GIB - GIB // 2
    assert num_gpu_blocks(memory(), 2 * 2**20, 16) == (72 - 18.5) * GIB // (2 * 2**20)
    assert memory().describe() == (
        "80.00 GiB of GPU memory, of which 90% may be used: weights 15.00 GiB, activations 2.00 "
        "GiB, CUDA and other processes 1.00 GiB, CUDA graphs 0.50 GiB, KV cache 53.50 GiB"
    )


def test_the_error_says_how_much_memory_is_missing() -> None:
    tight = memory(utilization=0.2)
    with pytest.raises(ValueError, match=r"2\.52 GiB are missing for one block of 16 tokens \(80"):
        num_gpu_blocks(tight, GIB // 64, 16)


@pytest.mark.parametrize(
    ("max_num_seqs", "num_tokens", "max_model_len"), [(8, 20, 100), (256, 64, 100), (2, 50, 10)]
)
def test_the_largest_step(max_num_seqs: int, num_tokens: int, max_model_len: int) -> None:
    step = largest_step(
        Transfers(torch.device("cpu")),
        max_num_seqs=max_num_seqs,
        num_tokens=num_tokens,
        max_model_len=max_model_len,
    )
    num_seqs = min(max_num_seqs, num_tokens)
    assert step.positions.size == min(num_tokens, num_seqs * max_model_len)
    assert step.seq_lens.size == step.output_rows.size == num_seqs
    assert step.positions.max() == step.seq_lens.max() - 1 < max_model_len
    for block_size in (8, 16, 32):
        assert (step.kv_slot_mapping(block_size) < block_size).all()


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="unknown device 'tpu'; known: auto, cpu, cuda, cuda:N"):
        find_device("tpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ValueError, match=r"'cuda' cannot be used: torch .* built without CUDA"):
        find_device("cuda")
    # torch's own messages of several lines: no driver, or a driver too old.
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    def no_driver() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nGo")

    monkeypatch.setattr(torch.cuda, "init", no_driver)
    with pytest.raises(ValueError, match=r"is too old \(found version 11040\)\.$"):
        find_device("cuda:1")


def test_a_gpu_too_old_or_too_small_is_an_error() -> None:
    check_dtype(torch.bfloat16, "NVIDIA A10", (8, 6))
    check_dtype(torch.float16, "Tesla T4", (7, 5))
    with pytest.raises(ValueError, match=r"Tesla T4 \(compute capability 7\.5\) has no bfloat16"):
        check_dtype(torch.bfloat16, "Tesla T4", (7, 5))
    check_weights_fit(GIB, GIB)
    with pytest.raises(ValueError, match=r"take 16\.00 GiB, .* 6\.00 GiB .*: 10\.00 GiB are miss"):
        check_weights_fit(16 * GIB, 6 * GIB)
