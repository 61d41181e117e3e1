"""What a speculative model's files hold: a model, or heads that need another model."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taco_common.json_file import read_json_object
from taco_proto.errors import ConfigurationError
from taco_worker.models.weight_files import stored_tensor_names

# What EAGLE calls the layer that joins a token's embedding with the target's hidden state.
_EAGLE_WEIGHT = "fc.weight"
# Names, shapes and places of tensors; the tensors are other files of the archive.
_MAX_PICKLE_BYTES = 16 * 2**20


def are_heads(location: str) -> bool:
    """Whether a directory or hub id holds Medusa or EAGLE heads.

    Medusa and EAGLE 3 say so in config.json. That of EAGLE 1 reads like a model of one layer: its
    weights tell.

    Raises:
        ConfigurationError: there is no config.json that can be read.
    """
    config = _read_config(location)
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


def _read_config(location: str) -> dict[str, Any]:
    file = Path(location) / "config.json"
    try:
        if not file.is_file():
            from taco_worker.models.download import download_config

            file = download_config(location, None, None) / "config.json"
        return read_json_object(file)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the speculative model: {error}") from None


def _has_eagle_weight(directory: Path) -> bool:
    """Whether any weight file has an EAGLE layer; nothing is loaded, let alone unpickled.

    Raises:
        ConfigurationError: a weight file is damaged.
    """
    try:
        for file in filter(Path.is_file, directory.glob("*.safetensors")):
            if any(_EAGLE_WEIGHT in name for name in stored_tensor_names(file)):
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
    """The start of each pickle in a file of `torch.save`, where the names of weights are."""
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith("data.pkl"):
                with archive.open(name) as pickled:
                    yield pickled.read(_MAX_PICKLE_BYTES)
