"""Loads the torch decoder; on a GPU with Triton kernels, CUDA graphs and weight offload."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from taco_proto.config import WorkerConfig
from taco_worker.attention.backend import (
    AttentionBackend,
    create_attention_backend,
    default_attention_backend,
)
from taco_worker.backends.torch.cuda_graphs import CudaGraphs
from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.backends.torch.plan_weights import load_network
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.backends.torch.weight_offload import buffer_bytes, num_host_layers, offload_layers
from taco_worker.devices.selection import check_dtype, check_weights_fit
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.ops import LayerOps, TorchOps
from taco_worker.models.config import ModelConfig
from taco_worker.models.dtypes import dtype_name
from taco_worker.models.step_model import describe
from taco_worker.models.weight_files import LoadFormat
from taco_worker.sampling.ops import SamplingOps
from taco_worker.sampling.torch_ops import TorchSampling

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """The implementations that a torch model uses in addition to torch's matrix products."""

    attention: AttentionBackend
    layers: LayerOps
    sampling: SamplingOps
    graphs: CudaGraphs | None
    description: str


def choose_torch_backend(
    config: WorkerConfig, transfers: Transfers, dtype: torch.dtype
) -> TorchBackend:
    """Raises ValueError if the attention back end cannot run on the device."""
    device = transfers.device
    name = config.attention_backend or default_attention_backend(device)
    attention = create_attention_backend(name, device)
    if device.type == "cpu":
        description = describe("torch", torch.get_num_threads(), dtype)
        return TorchBackend(attention, TorchOps(), TorchSampling(), None, description)

    from taco_worker.layers.triton_ops import TritonOps
    from taco_worker.sampling.triton_ops import TritonSampling

    graphs = None
    if name == "triton" and not config.enforce_eager:
        graphs = CudaGraphs(
            transfers,
            max_num_seqs=config.max_num_seqs,
            max_seq_len=config.max_seq_len_to_capture,
        )
    gpu = torch.cuda.get_device_name(device)
    description = f"{gpu}, {dtype_name(dtype)}, attention by {name}"
    return TorchBackend(attention, TritonOps(), TritonSampling(transfers), graphs, description)


def load_torch_model(
    config: WorkerConfig,
    model_dir: Path,
    model: ModelConfig,
    transfers: Transfers,
    *,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    load_format: LoadFormat,
) -> TorchModel:
    """Raises ValueError if the device, its memory or the configuration does not allow it."""
    device = transfers.device
    parts = choose_torch_backend(config, transfers, dtype)
    _check_kv_dtype(config, device, dtype, kv_dtype)
    sizes = _weight_sizes(model, dtype)
    on_host = 0
    if config.cpu_offload_gb:
        on_host = num_host_layers(sizes.layers, int(config.cpu_offload_gb * _GIB))
    if device.type == "cuda":
        check_dtype(
            dtype, torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        )
        hosted = sizes.layers[len(sizes.layers) - on_host :]
        on_device = sizes.total - sum(hosted) + buffer_bytes(hosted)
        check_weights_fit(on_device, torch.cuda.mem_get_info(device)[0])
    network = PlanNetwork(
        model.plan,
        parts.attention,
        parts.layers,
        dtype=dtype,
        device=device,
        num_host_layers=on_host,
    )
    load_network(network, model_dir, model, load_format=load_format, seed=config.model.seed)
    if on_host:
        offload_layers(network, list(network.layers)[-on_host:], device)
    return TorchModel(
        network,
        transfers,
        description=parts.description,
        sampling=parts.sampling,
        kv_dtype=kv_dtype,
        graphs=parts.graphs,
    )


def _check_kv_dtype(
    config: WorkerConfig, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    if kv_dtype == dtype:
        return
    if device.type == "cpu":
        raise ValueError(f"a KV cache of {dtype_name(kv_dtype)} needs the CPU kernels")
    if config.attention_backend not in (None, "triton"):
        raise ValueError(f"a KV cache of {dtype_name(kv_dtype)} needs the triton back end")


@dataclass(frozen=True, slots=True)
class _WeightSizes:
    """Bytes of a model's parameters: the total, and each layer's."""

    total: int
    layers: list[int]


def _weight_sizes(model: ModelConfig, dtype: torch.dtype) -> _WeightSizes:
    layers = [0] * model.plan.num_layers
    total = 0
    for name, parameter in model.plan.parameters.items():
        size = prod(parameter.shape) * dtype.itemsize
        total += size
        if name.startswith("layers."):
            layers[int(name.split(".")[1])] += size
    return _WeightSizes(total, layers)
