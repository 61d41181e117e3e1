"""Reads the scales of a float8 KV cache from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taco_kernels.kv_entry import EntryScales
from taco_worker.kv_scales.layer_scales import check_layers, check_scale, entry_scales
from taco_worker.kv_scales.scale_names import ScaleKind, scale_of
from taco_worker.models.config import ModelConfig
from taco_worker.models.converted.header import rest_file
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files, stored_tensors

if TYPE_CHECKING:
    from torch import Tensor

# Load formats of files that hold no scales of the KV cache.
_WITHOUT_SCALES = ("dummy", "gguf")
# Layer by layer, the value (or name) of each scale.
_Found = dict[int, dict[ScaleKind, str]]


def check_checkpoint_scales(model: ModelConfig) -> None:
    """Check that a checkpoint has the scales of all layers or of none, by its files' headers.

    Raises:
        ValueError: it has those of some layers, or a scale is more than one number.
    """
    names: list[str] = []
    for file in _files(model.files):
        for name, tensor in stored_tensors(file).items():
            if scale_of(name) is not None:
                _check_size(name, tensor.shape, file)
                names.append(name)
    if names:
        _arranged(names, model)


def read_scale_tensors(checkpoint: CheckpointFiles) -> Iterator[tuple[Path, str, Tensor]]:
    """The file, name and tensor of each scale that a checkpoint stores.

    Raises:
        ValueError: a file is damaged.
    """
    from taco_worker.models.tensor_files import iterate_tensors

    for file in _files(checkpoint):
        for name, tensor in iterate_tensors(file, lambda name: scale_of(name) is not None):
            yield file, name, tensor


def read_checkpoint_scales(model: ModelConfig) -> tuple[EntryScales, ...] | None:
    """The scales of each KV entry; None: the checkpoint has none.

    Raises:
        ValueError: it has those of some layers, or a scale is not one finite positive number.
    """
    values: dict[str, float] = {}
    for file, name, tensor in read_scale_tensors(model.files):
        _check_size(name, tensor.shape, file)
        values[name] = check_scale(float(tensor.float()), f"{name} in {file}")
    if not values:
        return None
    scales: dict[int, EntryScales] = {}
    for layer, named in _arranged(values, model).items():
        both = named.get("both", "")
        key, value = named.get("key", both), named.get("value", both)
        scales[layer] = EntryScales(values[key], values[value])
    return entry_scales(scales, model.plan, str(model.files.directory))


def _files(checkpoint: CheckpointFiles) -> Sequence[Path]:
    """The files that may hold scales."""
    if checkpoint.load_format in _WITHOUT_SCALES:
        return ()
    if checkpoint.load_format == "sharded_state":
        return (rest_file(checkpoint.directory),)
    files = find_weight_files(checkpoint)
    return [file for file in files if file.suffix != ".gguf"]


def _arranged(names: Iterable[str], model: ModelConfig) -> _Found:
    """The names of each layer's scales; raises ValueError unless they are complete."""
    model_dir = model.files.directory
    found: _Found = {}
    for name in names:
        scale = scale_of(name)
        assert scale is not None
        other = found.setdefault(scale.layer, {}).setdefault(scale.kind, name)
        if other != name:
            raise ValueError(f"{model_dir} has two scales of the same numbers: {other}, {name}")
    check_layers(found, model.plan, str(model_dir))
    for layer, named in found.items():
        for kind in ("key", "value"):
            if kind not in named and "both" not in named:
                raise ValueError(f"{model_dir} lacks the scale of the {kind}s of layer {layer}")
    return found


def _check_size(name: str, shape: Iterable[int], file: Path) -> None:
    if any(size != 1 for size in shape):
        raise ValueError(
            f"{file}: {name} must be one number, not {list(shape)}: scales of heads are not "
            "supported; use --kv-cache-dtype int8 or bfloat16, or --quantization-param-path"
        )
