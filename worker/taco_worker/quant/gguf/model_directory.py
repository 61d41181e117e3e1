"""Makes a model directory of GGUF files: what Hugging Face's format has beside the weights.

The directory links to the files, which stay where they are. It is made once for each state of the
files, in a cache; every process after that uses it like any other model directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_common.tokenizer_files.ggml_vocabulary import GgmlVocabulary
from taco_worker.quant.gguf.checkpoint import GgufCheckpoint, open_checkpoint
from taco_worker.quant.gguf.config.model_config import hf_config
from taco_worker.quant.gguf.tensor_names import ROPE_FACTORS

# Counts the forms that directories of one file have had.
_VERSION = 2
_MAX_FACTORS = 2**12


def model_directory(path: Path, cache: Path | None = None) -> Path:
    """The directory of a model in GGUF, which is made if the cache does not have it.

    Processes may do this at the same time: a directory appears whole.

    Args:
        path: of the model's file, or of one of its files.
        cache: folder of such directories; by default `$XDG_CACHE_HOME/taco_llm/gguf`.

    Raises:
        ValueError: a file is missing or not valid, the model is not supported, or the cache cannot
            be written; the message is one line.
    """
    checkpoint = open_checkpoint(path.absolute())
    folder = _default_cache() if cache is None else cache
    directory = folder / f"{checkpoint.first_file.stem[:100]}-{_identity(checkpoint)}"
    if directory.is_dir():
        return directory
    try:
        files = directory_files(checkpoint)
    except ValueError as error:
        raise ValueError(f"cannot load {checkpoint.first_file}: {error}") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(directory, files, checkpoint)
    except OSError as error:
        raise ValueError(
            f"cannot write {directory}: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from None
    return directory


def _default_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "taco_llm" / "gguf"


def _identity(checkpoint: GgufCheckpoint) -> str:
    """Of path, size, time of change and header of all files."""
    states = [
        (str(file), file.stat().st_size, file.stat().st_mtime_ns, header.digest)
        for file, header in checkpoint.headers.items()
    ]
    content = json.dumps([_VERSION, states]).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def directory_files(checkpoint: GgufCheckpoint) -> dict[str, Mapping[str, Any]]:
    """The JSON files of the directory, by name.

    Raises:
        ValueError: as `model_directory`, some without the name of a file.
    """
    for _ in checkpoint:  # raises for tensors of impossible shapes
        pass
    vocabulary = GgmlVocabulary(checkpoint.metadata.values)
    config = hf_config(checkpoint.metadata, checkpoint.tensors, _rope_factors(checkpoint))
    config["quantization_config"]["header"] = checkpoint.digest
    for name, kind in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{name}_token_id"] = vocabulary.token_id(kind)
    files: dict[str, Mapping[str, Any]] = {"config.json": config}
    if vocabulary.is_there:
        files["tokenizer.json"] = vocabulary.tokenizer_json()
        files["tokenizer_config.json"] = vocabulary.tokenizer_config()
        named = {"bos_token_id": config["bos_token_id"], "eos_token_id": vocabulary.end_ids()}
        named = {key: one for key, one in named.items() if one not in (None, [])}
        files["generation_config.json"] = named
    return files


def _rope_factors(checkpoint: GgufCheckpoint) -> dict[str, list[float]]:
    """The tensors with factors of frequencies that the model has."""
    found: dict[str, list[float]] = {}
    for file, header in checkpoint.headers.items():
        for name in ROPE_FACTORS:
            info = header.tensors.get(name)
            if info is None:
                continue
            if info.type.name != "F32" or len(info.shape) != 1 or info.shape[0] > _MAX_FACTORS:
                raise ValueError(f"tensor {name!r} is not a list of float32")
            with file.open("rb") as content:
                content.seek(info.start)
                data = content.read(info.num_bytes)
            found[name] = list(struct.unpack(f"<{info.shape[0]}f", data))
    return found


def _write(
    directory: Path, files: Mapping[str, Mapping[str, Any]], checkpoint: GgufCheckpoint
) -> None:
    """Write everything under another name, then rename it."""
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
    try:
        for name, content in files.items():
            text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
            (building / name).write_text(text, encoding="utf-8")
        for file in checkpoint.headers:
            (building / file.name).symlink_to(file)
        building.chmod(0o755)
        building.rename(directory)
    except OSError:
        shutil.rmtree(building, ignore_errors=True)
        if not directory.is_dir():  # another process was faster
            raise
