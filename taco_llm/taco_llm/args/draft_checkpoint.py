"""Tells from its files whether a speculative model is a draft model or Medusa or EAGLE heads."""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from taco_common.json_file import read_json_object
from taco_proto.errors import ConfigurationError
from taco_worker.models.weight_files import stored_tensors

# EAGLE's name of the layer that joins a token's embedding with the target's hidden state.
_EAGLE_WEIGHT = "fc.weight"
# A pickle contains names, shapes and offsets of tensors; the tensors are other archive members.
_MAX_PICKLE_BYTES = 16 * 2**20


def are_heads(location: str, download_dir: str | None = None) -> bool:
    """Whether a directory or hub id contains Medusa or EAGLE heads.

    config.json identifies Medusa and EAGLE 3. The config.json of EAGLE 1 looks like a model with
    one layer, so the names of its weights decide.

    Args:
        download_dir: as of `EngineArgs`.

    Raises:
        ConfigurationError: config.json is missing or cannot be read.
    """
    return _are_heads(_read_config(location, download_dir), location)


def is_head_directory(directory: Path) -> bool:
    """Whether `directory` contains Medusa or EAGLE heads; False without a readable config.json.

    Raises:
        ConfigurationError: a weight file is damaged.
    """
    try:
        config = read_json_object(directory / "config.json")
    except (OSError, ValueError):
        return False
    return _are_heads(config, str(directory))


def _are_heads(config: Mapping[str, Any], location: str) -> bool:
    architectures = " ".join(map(str, config.get("architectures") or ())).lower()
    if (
        "medusa_num_heads" in config
        or "draft_vocab_size" in config
        or any(name in architectures for name in ("medusa", "eagle"))
        or str(config.get("model_type", "")).lower() in ("medusa", "eagle")
    ):
        return True
    if config.get("num_hidden_layers") != 1:
        return False
    directory = Path(location)
    return _has_eagle_weight(directory) if directory.is_dir() else True


def _read_config(location: str, download_dir: str | None) -> dict[str, Any]:
    file = Path(location) / "config.json"
    try:
        if not file.is_file():
            from taco_worker.models.download import download_config

            folder = None if download_dir is None else Path(download_dir)
            file = download_config(location, None, folder) / "config.json"
        return read_json_object(file)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the speculative model: {error}") from None


def _has_eagle_weight(directory: Path) -> bool:
    """Whether any weight file contains an EAGLE layer. Nothing is loaded or unpickled.

    Raises:
        ConfigurationError: a weight file is damaged.
    """
    try:
        for file in filter(Path.is_file, directory.glob("*.safetensors")):
            if any(_EAGLE_WEIGHT in name for name in stored_tensors(file)):
                return True
        return any(
            _EAGLE_WEIGHT.encode() in pickled
            for file in directory.glob("*.bin")
            if zipfile.is_zipfile(file)
            for pickled in _pickles(file)
        )
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"the speculative model {directory}: {error}") from None


def _pickles(file: Path) -> Iterator[bytes]:
    """The start of each pickle in a file of `torch.save`; it contains the names of weights."""
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith("data.pkl"):
                with archive.open(name) as pickled:
                    yield pickled.read(_MAX_PICKLE_BYTES)
