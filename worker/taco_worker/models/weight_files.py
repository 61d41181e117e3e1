"""Finds and checks the weight files of a model directory, without torch or reading a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from taco_common.json_file import JsonFileError, parse_json_object, read_json_object
from taco_worker.models.config import ModelConfig
from taco_worker.models.mistral_format import (
    WEIGHTS_PREFIX,
    head_dim_of,
    hf_name,
    is_mistral_file,
)
from taco_worker.models.weight_sources import WeightSources

LoadFormat = Literal["auto", "safetensors", "pt", "mistral", "dummy"]

_NAMES_IN_ERROR = 5
_LENGTH_BYTES = 8  # little-endian, in front of a safetensors header
_MAX_INDEX_BYTES = 64 * 2**20
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


def find_weight_files(model_dir: Path, load_format: LoadFormat) -> list[Path]:
    """The files to read: those of an index, or a single file.

    "auto" prefers safetensors to .bin files, and these to consolidated files.

    Raises:
        ValueError: no weight file exists, or the index is damaged or names a missing file.
    """
    bases = {
        "safetensors": ["model.safetensors"],
        "pt": ["pytorch_model.bin"],
        "mistral": [f"{WEIGHTS_PREFIX}.safetensors"],
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
    raise ValueError(f"no weights in {model_dir}: looked for {' and '.join(bases[load_format])}")


def check_weight_files(model_dir: Path, config: ModelConfig, load_format: LoadFormat) -> None:
    """Check that the weight files are complete and hold the architecture's tensors.

    It reads the headers of safetensors files, and only the sizes of `.bin` files.

    Raises:
        ValueError: a file is missing, empty or truncated, or its tensors are not the model's.
    """
    if load_format == "dummy":
        return
    files = find_weight_files(model_dir, load_format)
    if empty := [file.name for file in files if not file.stat().st_size]:
        raise ValueError(f"weight files in {model_dir} are empty: {', '.join(empty)}")
    if any(file.suffix != ".safetensors" for file in files):
        return
    sources = WeightSources(config.plan)
    found: set[str] = set()
    unexpected: list[str] = []
    for file in files:
        for stored_name in stored_tensor_names(file):
            name = sources.canonical(stored_name)
            if name is not None and name not in sources.fills:
                unexpected.append(stored_name)
            found.add(name or "")
    check_tensor_names(model_dir, sources.missing(found), unexpected)


def stored_tensor_names(path: Path) -> list[str]:
    """The names of the tensors in a safetensors file, from its header, as Hugging Face has them.

    Raises:
        ValueError: the file cannot be read, its header is damaged, or it is truncated.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            num_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            start = _LENGTH_BYTES + num_bytes
            if num_bytes > _MAX_HEADER_BYTES or start > size:
                raise ValueError(f"a header of {num_bytes} bytes in a file of {size} bytes")
            text = stream.read(num_bytes).decode()
        header = parse_json_object(text, path)
        header.pop("__metadata__", None)
        end = start + max([entry["data_offsets"][1] for entry in header.values()], default=0)
    except JsonFileError as error:
        raise ValueError(f"{error} (the header of a safetensors file)") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"cannot read {path}: not a safetensors file ({error!r})") from None
    if end != size:
        what = "is cut off" if end > size else "is too long"
        raise ValueError(f"{path} {what}: its header asks for {end} bytes, the file has {size}")
    if not is_mistral_file(path):
        return list(header)
    head_dim_of(path.parent)  # loading needs it
    return [name for name in map(hf_name, header) if name is not None]


def check_tensor_names(
    model_dir: Path,
    missing: Sequence[str],
    unexpected: Sequence[str],
    misshapen: Sequence[str] = (),
    integers: Sequence[str] = (),
) -> None:
    """Raises ValueError if any list is not empty; the message shows the first few names."""
    problems = [
        f"{problem}: {_listed(names)}"
        for problem, names in (
            ("missing tensors", missing),
            ("unexpected tensors", unexpected),
            ("wrong shapes", misshapen),
            ("not of a floating-point type", integers),
        )
        if names
    ]
    if problems:
        raise ValueError(f"the weights in {model_dir} do not fit: {'; '.join(problems)}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_IN_ERROR])
    rest = len(names) - _NAMES_IN_ERROR
    return f"{shown} and {rest} more" if rest > 0 else shown


def _indexed_files(index: Path) -> list[Path]:
    try:
        weight_map: Mapping[str, str] = read_json_object(index, _MAX_INDEX_BYTES)["weight_map"]
        files = [index.parent / Path(name).name for name in sorted(set(weight_map.values()))]
    except (FileNotFoundError, JsonFileError) as error:
        raise ValueError(f"{index} is not an index of weight files: {error}") from None
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{index} is not an index of weight files: {error!r}") from None
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{index} names files that are missing: {', '.join(missing)}")
    return files
