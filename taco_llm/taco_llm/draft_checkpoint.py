"""What a speculative model's files hold: a model, or heads that need another model."""

import zipfile
from pathlib import Path
from typing import Any

from taco_proto.errors import ConfigurationError
from taco_proto.json_file import read_json_object

# What EAGLE calls the layer that joins a token's embedding with the target's hidden state.
_EAGLE_WEIGHT = "fc.weight"


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
    return _EAGLE_WEIGHT in _weight_names(directory) if directory.is_dir() else True


def _read_config(location: str) -> dict[str, Any]:
    file = Path(location) / "config.json"
    try:
        if not file.is_file():
            from taco_worker.models.download import download_config

            file = download_config(location, None, None) / "config.json"
        return read_json_object(file)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the speculative model: {error}") from None


def _weight_names(directory: Path) -> str:
    """Text in which the names of all weights stand; nothing is loaded, let alone unpickled."""
    texts: list[str] = []
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as stream:
            texts.append(
                stream.read(int.from_bytes(stream.read(8), "little")).decode(errors="replace")
            )
    for file in directory.glob("*.bin"):
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
                texts += [archive.read(name).decode("latin-1") for name in pickles]
    return "\n".join(texts)
