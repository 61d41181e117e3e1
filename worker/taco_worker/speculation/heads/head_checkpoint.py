"""Reads the files of a draft-head checkpoint and checks its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from taco_common.json_file import JsonFileError, read_json_object
from taco_proto.errors import ConfigurationError
from taco_worker.models.hub import resolve_model
from taco_worker.models.tensor_files import iterate_tensors
from taco_worker.models.weight_files import find_weight_files

# Medusa's own file name comes first: a directory may also hold the base model.
_HEAD_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_NAMES_IN_ERROR = 5


def find_head_checkpoint(model: str, *, revision: str | None, download_dir: Path | None) -> Path:
    """The directory of `model`, a path or a hub id.

    Raises:
        ConfigurationError: it does not exist.
    """
    try:
        return resolve_model(model, revision=revision, download_dir=download_dir)
    except ValueError as error:
        raise ConfigurationError(f"draft heads not found: {error}") from None


def read_config(model_dir: Path) -> dict[str, Any]:
    """Raises ConfigurationError if config.json is not a JSON object."""
    path = model_dir / "config.json"
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise ConfigurationError(f"cannot read {path}: there is no such file") from None
    except JsonFileError as error:
        raise ConfigurationError(str(error)) from None


class HeadTensors:
    """The tensors of a draft-head checkpoint, taken one by one by name; views of its files."""

    def __init__(self, model_dir: Path, tensors: Mapping[str, Tensor]) -> None:
        self._model_dir = model_dir
        self._tensors = dict(tensors)

    @classmethod
    def read(cls, model_dir: Path) -> HeadTensors:
        """Raises ConfigurationError if the weights are missing or damaged."""
        files = [model_dir / name for name in _HEAD_FILES if (model_dir / name).exists()][:1]
        try:
            files = files or find_weight_files(model_dir, "auto")
            pairs = (pair for file in files for pair in iterate_tensors(file))
            return cls(model_dir, dict(pairs))
        except ValueError as error:
            raise ConfigurationError(f"the heads cannot be read: {error}") from None

    def under(self, prefix: str) -> HeadTensors:
        """The tensors whose names begin with `prefix`, without it; all tensors if none does."""
        found = {
            name.removeprefix(prefix): tensor
            for name, tensor in self._tensors.items()
            if name.startswith(prefix)
        }
        return HeadTensors(self._model_dir, found or self._tensors)

    @property
    def names(self) -> list[str]:
        """The names of the tensors not taken so far."""
        return list(self._tensors)

    def take(self, name: str, *shape: int) -> Tensor:
        """Raises ConfigurationError if the tensor does not exist or has another shape."""
        if name not in self._tensors:
            raise ConfigurationError(f"the heads in {self._model_dir} lack {name}")
        tensor = self._tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise ConfigurationError(
                f"the heads in {self._model_dir} do not fit the model: {name} is "
                f"{list(tensor.shape)}, should be {list(shape)}"
            )
        return tensor

    def take_if_there(self, name: str, *shape: int) -> Tensor | None:
        """None if the tensor does not exist; raises ConfigurationError for another shape."""
        return self.take(name, *shape) if name in self._tensors else None

    def drop(self, names: Sequence[str]) -> None:
        """Ignore optional tensors that are not needed."""
        for name in names:
            self._tensors.pop(name, None)

    def check_all_taken(self) -> None:
        """Raises ConfigurationError if tensors are left: parts that TACO does not know."""
        if names := sorted(self._tensors):
            more = f" and {len(names) - _NAMES_IN_ERROR} more" * (len(names) > _NAMES_IN_ERROR)
            raise ConfigurationError(
                f"the heads in {self._model_dir} have unknown tensors: "
                f"{', '.join(names[:_NAMES_IN_ERROR])}{more}"
            )
