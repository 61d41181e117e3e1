"""Finds the weight files of a model directory, and reads their headers, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from taco_common.json_file import JsonFileError, read_json_object
from taco_worker.models.converted.header import check_header_exists, is_converted, packed_files
from taco_worker.models.mistral_format import (
    WEIGHTS_PREFIX,
    head_dim_of,
    hf_name,
    is_mistral_file,
)
from taco_worker.models.tensorizer_table import is_tensorizer, read_table
from taco_worker.quant.gguf.checkpoint import is_gguf, open_checkpoint, part_files
from taco_worker.quant.pickled_headers import PICKLED_ENDS, read_pickled_header
from taco_worker.quant.safetensors_header import read_safetensors_header

LoadFormat = Literal[
    "auto",
    "safetensors",
    "pt",
    "npcache",
    "mistral",
    "gguf",
    "tensorizer",
    "sharded_state",
    "dummy",
]

TENSORIZER_FILE = "model.tensors"

_AUTO_GPTQ = "gptq_model-*bit-*g.safetensors"  # AutoGPTQ's old names
_MAX_INDEX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of a model, and how its weights are read.

    Attributes:
        directory: of the model.
        load_format: "auto" (safetensors, else .bin, else consolidated files), "safetensors", "pt"
            (.bin), "npcache" (.bin, kept as NumPy files), "dummy" (random weights; no file is
            read), or the format of other files.
        tensorizer_file: of "tensorizer"; None: model.tensors in `directory`.
        adapter: directory of a LoRA adapter that is merged into the weights, if any.
        lora_modules: names and directories of the adapters that requests may name.
    """

    directory: Path
    load_format: LoadFormat = "auto"
    tensorizer_file: Path | None = None
    adapter: Path | None = None
    lora_modules: tuple[tuple[str, Path], ...] = ()


def find_weight_files(checkpoint: CheckpointFiles) -> list[Path]:
    """The files to read: those of an index, or a single file.

    Raises:
        ValueError: no weight file exists, or the index is damaged or names a missing file.
    """
    model_dir, load_format = checkpoint.directory, checkpoint.load_format
    if load_format == "sharded_state":
        return packed_files(model_dir)
    if load_format == "tensorizer":
        file = checkpoint.tensorizer_file or model_dir / TENSORIZER_FILE
        if not file.is_file():
            raise ValueError(f"no weights: {file} is not a file")
        return [file]
    bases = {
        "safetensors": ["model.safetensors"],
        "pt": ["pytorch_model.bin"],
        "npcache": ["pytorch_model.bin"],
        "mistral": [f"{WEIGHTS_PREFIX}.safetensors"],
        "gguf": [],
        "auto": ["model.safetensors", "pytorch_model.bin", f"{WEIGHTS_PREFIX}.safetensors"],
    }
    for base in bases[load_format]:
        if (index := model_dir / f"{base}.index.json").exists():
            return _indexed_files(index)
        if (single := model_dir / base).is_file():  # reading a pipe would block
            return [single]
    if load_format in ("auto", "mistral"):
        shards = sorted(model_dir.glob(f"{WEIGHTS_PREFIX}-*-of-*.safetensors"))
        if shards and len(shards) == int(shards[0].stem.rsplit("-", 1)[1]):
            return shards
    if load_format in ("auto", "safetensors") and (files := sorted(model_dir.glob(_AUTO_GPTQ))):
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise ValueError(f"{model_dir} has the weights of several models: {names}")
        return files
    if load_format in ("auto", "gguf") and (files := sorted(model_dir.glob("*.gguf"))):
        return part_files(files[0])
    if is_converted(model_dir):
        raise ValueError(
            f"the weights in {model_dir} are converted: they need --load-format auto, not "
            f"{load_format}"
        )
    if load_format != "gguf" and (files := sorted(model_dir.glob("*.gguf"))):
        raise ValueError(
            f"the weights are in {files[0].name}: it needs --load-format gguf, not {load_format}"
        )
    check_header_exists(model_dir)
    looked_for = bases[load_format] or ["*.gguf"]
    raise ValueError(f"no weights in {model_dir}: looked for {' and '.join(looked_for)}")


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """The shape of a tensor, and its type by its name in safetensors files."""

    shape: tuple[int, ...]
    dtype: str


def stored_tensors(path: Path) -> dict[str, TensorHeader]:
    """The tensors in a weight file of any format, by their names in Hugging Face's format.

    Raises:
        ValueError: the file cannot be read, its header is damaged, or it is truncated.
    """
    if is_gguf(path):
        pieces = open_checkpoint(path).pieces[path]
        return {one.name: TensorHeader(one.stored_shape, one.dtype) for one in pieces}
    if is_tensorizer(path):
        return {one.name: TensorHeader(one.shape, one.dtype) for one in read_table(path)}
    if path.suffix in PICKLED_ENDS:
        pickled = read_pickled_header(path)
        return {name: TensorHeader(one.shape, one.dtype) for name, one in pickled.items()}
    header = read_safetensors_header(path)
    tensors = {name: TensorHeader(one.shape, one.dtype) for name, one in header.tensors.items()}
    if not is_mistral_file(path):
        return tensors
    head_dim_of(path.parent)  # loading needs it
    names = {name: hf_name(name) for name in tensors}
    return {new: tensors[name] for name, new in names.items() if new is not None}


def _indexed_files(index: Path) -> list[Path]:
    try:
        weight_map: Mapping[str, str] = read_json_object(index, _MAX_INDEX_BYTES)["weight_map"]
        files = [index.parent / Path(name).name for name in sorted(set(weight_map.values()))]
    except (FileNotFoundError, JsonFileError) as error:
        raise ValueError(f"{index} is not an index of weight files: {error}") from None
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index} is not an index of weight files: {error!r}") from None
    if not files:
        raise ValueError(f"{index} is not an index of weight files: it names none")
    kind = index.name.removesuffix(".index.json").rpartition(".")[2]
    if other := [file.name for file in files if file.suffix != f".{kind}"]:
        raise ValueError(f"{index} names files that are not .{kind}: {', '.join(other)}")
    if missing := [file.name for file in files if not file.is_file()]:
        held = [name for name, file in weight_map.items() if Path(file).name == missing[0]]
        others = f" and {len(held) - 1} more tensors" * (len(held) > 1)
        raise ValueError(
            f"{index} names files that are missing: {', '.join(missing)}; {missing[0]} holds "
            f"{held[0]!r:.200}{others}"
        )
    return files
