"""Loads weights into a torch network."""

from __future__ import annotations

from torch import Tensor

from taco_kernels.group_codes import GroupCodes
from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.models.config import ModelConfig
from taco_worker.models.weight_loading import load_weights
from taco_worker.quant.int8_rows import int8_rows


def load_network(
    network: PlanNetwork,
    config: ModelConfig,
    *,
    seed: int = 0,
    stored_as: str | None = None,
) -> None:
    """Load weights into a torch network; see `load_weights` and `NetworkSink`."""
    sink = NetworkSink(network, stored_as=stored_as)
    load_weights(sink, config, seed=seed)
    network.finish_loading()


class NetworkSink:
    """A `WeightSink` that fills the parameters of a network."""

    def __init__(self, network: PlanNetwork, *, stored_as: str | None = None) -> None:
        """`stored_as`: "int8" quantizes the rows of the network's coded parameters."""
        self.dtype = network.dtype
        self.device = network.device
        self._parameters = network.by_name
        self._coded = network.coded
        self._quantizes = stored_as is not None

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        if parameter in self._coded:
            stored: GroupCodes | Tensor = rows
            if self._quantizes:
                stored = self._quantized(parameter, rows)
            self._coded[parameter].put(start, stored, expert)
            return
        values = self._parameters[parameter].data
        if expert is not None:
            values = values[expert]
        values[start : start + rows.shape[0]].copy_(rows)

    def takes_codes(self, parameter: str) -> bool:
        return parameter in self._coded and not self._quantizes

    def put_codes(self, parameter: str, start: int, codes: GroupCodes, expert: int | None) -> None:
        self._coded[parameter].put(start, codes, expert)

    def _quantized(self, parameter: str, rows: Tensor) -> GroupCodes:
        try:
            return int8_rows(rows.to(self.device))
        except ValueError as error:
            raise ValueError(f"{parameter}: {error}") from None
