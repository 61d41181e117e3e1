"""Loads weights into a torch network."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.models.config import ModelConfig
from taco_worker.models.weight_files import LoadFormat
from taco_worker.models.weight_loading import load_weights


def load_network(
    network: PlanNetwork,
    model_dir: Path,
    config: ModelConfig,
    *,
    load_format: LoadFormat = "auto",
    seed: int = 0,
) -> None:
    """Load weights into a torch network; see `load_weights`."""
    load_weights(NetworkSink(network), model_dir, config, load_format=load_format, seed=seed)


class NetworkSink:
    """A `WeightSink` that fills the parameters of a network."""

    def __init__(self, network: PlanNetwork) -> None:
        self.dtype = network.dtype
        self.device = network.device
        self._parameters = network.by_name

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        values = self._parameters[parameter].data
        if expert is not None:
            values = values[expert]
        values[start : start + rows.shape[0]].copy_(rows)
