"""Matrices that are packed before torch is imported have the bits of those packed after it."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.checkpoints import make_checkpoint
from support.cpu_kernels import NATIVE, kernels_of
from taco_kernels.library import CpuKernels, load
from taco_kernels.native.mapped_memory import HUGE_PAGE
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.backends.cpu import early_weights
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.backends.cpu.early_weights import EarlyWeights
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.models.weight_loading import load_weights
from taco_worker.startup_checks import matrix_bytes, stored_matrix_type

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16 with a tied head": {"dtype": torch.bfloat16, "tie_word_embeddings": True},
    "float16": {"dtype": torch.float16},
    "panels that are not full": {"dtype": torch.bfloat16, "intermediate_size": 100},
    "transposed matrices": {"architecture": "GPT2LMHeadModel", "dtype": torch.bfloat16},
    "gate and up in one tensor": {"architecture": "Phi3ForCausalLM", "pad_token_id": 0},
    "experts": {"architecture": "MixtralForCausalLM", "dtype": torch.bfloat16},
}


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    kernels_of(NATIVE[0], 1)  # so that the library is there
    return load(1)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_weights, "_BATCH_BYTES", 4096)


def stop_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the memory were needed after `count` batches."""
    pack = EarlyWeights._pack_files

    def pack_some(self: EarlyWeights, address: int, num_bytes: int) -> Iterator[None]:
        return islice(pack(self, address, num_bytes), count)

    monkeypatch.setattr(EarlyWeights, "_pack_files", pack_some)


def pack(path: Path, num_bytes: int | None = None, **options: Any) -> EarlyWeights:
    """What the thread packs until it ends."""
    wanted = ModelConfig(model=str(path), **options)
    config = WorkerConfig(model=wanted, scheduler="", device="cpu", num_threads=1)
    model = find_checkpoint(wanted)
    if num_bytes is None:
        num_bytes = matrix_bytes(config, model)
    early = EarlyWeights(config, model, stored_matrix_type(config, model), num_bytes)
    early.memory._thread.join()
    return early


def cut_into_files(path: Path) -> list[Path]:
    """Divide the tensors of a checkpoint among two files."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    files = [path / "model-1.safetensors", path / "model-2.safetensors"]
    parts = [names[::2], names[1::2]]
    for file, part in zip(files, parts, strict=True):
        save_file({name: tensors[name] for name in part}, file)
    places = {name: file.name for file, part in zip(files, parts, strict=True) for name in part}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return files


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def loaded(
    path: Path,
    kernels: CpuKernels,
    early: EarlyWeights | None = None,
    dtype: torch.dtype = torch.bfloat16,
    quantization: str | None = None,
    *,
    quantize_lm_head: bool = False,
) -> CpuWeights:
    model = find_checkpoint(ModelConfig(model=str(path)))
    weights = CpuWeights(
        model.plan,
        kernels,
        dtype=dtype,
        quantization=quantization,
        quantizes_lm_head=quantize_lm_head,
        early_weights=early,
    )
    load_weights(weights, model)
    return weights


def matrices(weights: CpuWeights) -> dict[str, list[int]]:
    """The content of all matrices."""
    found = dict(weights.matrices)
    for name, experts in weights.experts.items():
        found |= {f"{name} {i}": one for i, one in enumerate(experts.matrices)}
    content: dict[str, list[int]] = {}
    for name, one in found.items():
        arrays = {"data": one._data, **one.column_arrays}  # type: ignore[attr-defined]
        content |= {f"{name} {part}": array.tolist() for part, array in arrays.items()}
    return content


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("num_batches", [0, 1, 3, 1000])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_the_bits_do_not_depend_on_when_a_matrix_is_packed(
    checkpoint: str,
    num_batches: int,
    quantization: str | None,
    kernels: CpuKernels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = CHECKPOINTS[checkpoint]
    dtype = torch.float32 if options.get("dtype") is None else torch.bfloat16
    path = make_checkpoint(tmp_path, **options)
    stop_after(num_batches, monkeypatch)

    early = pack(path, quantization=quantization)
    weights = loaded(path, kernels, early, dtype, quantization)

    assert weights.memory.data_ptr() == early.memory.address
    assert not early.memory.holds(0)  # taken
    assert matrices(weights) == matrices(loaded(path, kernels, None, dtype, quantization))


def test_all_rows_of_a_plain_model_are_packed_early(kernels: CpuKernels, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, tie_word_embeddings=False)
    early = pack(path)

    parameters = find_checkpoint(ModelConfig(model=str(path))).plan.parameters
    names = {name for name, one in parameters.items() if len(one.shape) == 2}
    (table,) = names - early.places.keys()
    assert "embed" in table
    counts = dict.fromkeys(early.places, 0)
    for parameter, start in early._num_rows:
        counts[parameter] += early.num_packed_rows(parameter, start)
    assert counts == {name: parameters[name].shape[0] for name in early.places}
    assert early.instruction_set == kernels.isa


def test_numbers_are_rounded_to_the_wanted_type(kernels: CpuKernels, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    early = pack(path, dtype="bfloat16")
    assert early.places
    assert matrices(loaded(path, kernels, early)) == matrices(loaded(path, kernels))


def test_matrices_that_do_not_fit_are_packed_later(kernels: CpuKernels, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, dtype=torch.bfloat16)
    whole = pack(path)
    early = pack(path, num_bytes=whole.num_placed_bytes // 2)

    assert 0 < early.num_placed_bytes <= whole.num_placed_bytes // 2
    assert matrices(loaded(path, kernels, early)) == matrices(loaded(path, kernels))


def test_too_little_memory_is_not_used(kernels: CpuKernels, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, dtype=torch.bfloat16, intermediate_size=8192)
    early = pack(path, num_bytes=HUGE_PAGE)

    weights = loaded(path, kernels, early)

    assert weights.memory.numel() > 2 * HUGE_PAGE
    assert not early.memory.holds(0)  # it went back to the system
    assert matrices(weights) == matrices(loaded(path, kernels))


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_an_lm_head_is_quantized_early(
    quantization: str | None, kernels: CpuKernels, tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path, dtype=torch.bfloat16, tie_word_embeddings=False)
    early = pack(path, quantization=quantization, quantize_lm_head=True)
    (head,) = find_checkpoint(ModelConfig(model=str(path))).plan.logits[-1].parameters

    assert head in early.column_arrays
    assert early.column_arrays.keys() == (early.places.keys() if quantization else {head})
    found, wanted = (
        loaded(path, kernels, given, quantization=quantization, quantize_lm_head=True)
        for given in (early, None)
    )
    assert matrices(found) == matrices(wanted)


def test_memory_for_codes_is_only_touched(kernels: CpuKernels, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, dtype=torch.bfloat16)
    early = pack(path, quantization="fp8")
    assert (early.instruction_set, early.places) == ("", {})


def test_several_files_are_packed_up_to_one_that_cannot_be_read(
    kernels: CpuKernels, tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path, tie_word_embeddings=False)
    whole = matrices(loaded(path, kernels, dtype=torch.float32))
    files = cut_into_files(path)
    early = pack(path)

    assert matrices(loaded(path, kernels, early, torch.float32)) == whole
    num_placed = len(early.places)
    files[1].write_bytes(b"no weights")
    early = pack(path)
    assert 0 < len(early.places) < num_placed
    with pytest.raises(ValueError, match=r"cannot read .*model-2"):
        loaded(path, kernels, early, torch.float32)


def test_memory_that_nothing_is_packed_into_is_touched(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, weights="bin", intermediate_size=4096)
    before = resident_bytes()
    early = pack(path)
    assert not early.places
    assert resident_bytes() - before > early.memory._num_bytes - (1 << 20)


@pytest.mark.parametrize("load_format", ["dummy", "pt"])
def test_other_formats_are_only_given_memory(load_format: str, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, weights="bin")
    early = pack(path, load_format=load_format)
    assert not early.places


def test_a_file_that_cannot_be_read_is_left_to_the_worker(
    kernels: CpuKernels, tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path)
    (path / "model.safetensors").write_bytes(b"no weights")
    early = pack(path)
    assert not early.places
    with pytest.raises(ValueError, match=r"cannot read .*model\.safetensors"):
        loaded(path, kernels, early, torch.float32)


def test_matrices_for_other_kernels_are_packed_again(kernels: CpuKernels, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, dtype=torch.bfloat16)
    for attribute, other in (
        ("instruction_set", "another"),
        ("_types", defaultdict(lambda: "f32")),
    ):
        early = pack(path)
        setattr(early, attribute, other)
        weights = loaded(path, kernels, early)
        assert not early.memory.holds(0)  # it went back to the system
        assert matrices(weights) == matrices(loaded(path, kernels))
