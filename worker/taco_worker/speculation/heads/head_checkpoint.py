"""Reads the files of a draft-head checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from taco_common.json_file import JsonFileError, read_json_object
from taco_proto.errors import ConfigurationError
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.hub import resolve_model
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.step_model import StepModel
from taco_worker.models.tensor_files import iterate_tensors
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files
from taco_worker.models.weight_loading import load_plans

# Medusa's own file name comes first: a directory may also hold the base model.
_HEAD_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")


def find_head_checkpoint(model: str, download_dir: str | None) -> Path:
    """The directory of `model`, a path or a hub id.

    Raises:
        ConfigurationError: it does not exist.
    """
    try:
        return resolve_model(
            model, download_dir=None if download_dir is None else Path(download_dir)
        )
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


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """The config and the weight files of draft heads.

    Attributes:
        tensor_names: of all tensors in the files.
    """

    fields: ConfigFields
    files: Sequence[Path]
    tensor_names: frozenset[str]

    @classmethod
    def read(cls, model_dir: Path) -> HeadCheckpoint:
        """Raises ConfigurationError if a file is missing or damaged."""
        fields = ConfigFields(read_config(model_dir))
        files = [model_dir / name for name in _HEAD_FILES if (model_dir / name).exists()][:1]
        try:
            files = files or find_weight_files(CheckpointFiles(model_dir))
            names = frozenset(name for file in files for name, _ in iterate_tensors(file))
        except ValueError as error:
            raise ConfigurationError(f"the heads cannot be read: {error}") from None
        return cls(fields, files, names)

    def tensor(self, name: str) -> Tensor | None:
        """A copy of the tensor of that name, if there is one."""
        if name not in self.tensor_names:
            return None
        pairs = (pair for file in self.files for pair in iterate_tensors(file))
        return next(tensor.clone() for found, tensor in pairs if found == name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors, by name."""
        pairs = (pair for file in self.files for pair in iterate_tensors(file))
        return {name: tuple(tensor.shape) for name, tensor in pairs}

    def load(self, plans: Sequence[ModelPlan], target: StepModel) -> list[StepModel]:
        """Models of the plans, on the target's back end.

        Raises:
            ConfigurationError: the tensors are not those of the plans.
        """
        lowered = [target.lower(plan) for plan in plans]
        parts = [(sink, plan) for (sink, _), plan in zip(lowered, plans, strict=True)]
        try:
            load_plans(parts, self.files)
        except ValueError as error:
            raise ConfigurationError(f"the heads do not fit: {error}") from None
        return [model for _, model in lowered]
