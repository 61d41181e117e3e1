"""Loads the torch decoder; on a GPU with Triton kernels, CUDA graphs and weight offload."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from taco_kernels.kv_format import EIGHT_BIT_DTYPES, KVFormat
from taco_proto.config import WorkerConfig
from taco_worker.attention.backend import (
    AttentionBackend,
    create_attention_backend,
    default_attention_backend,
)
from taco_worker.backends.torch.adapters import AdapterWeights
from taco_worker.backends.torch.coded_parameters import (
    CodedParameters,
    coded_parameters,
    parameter_bytes,
)
from taco_worker.backends.torch.cuda_graphs import CudaGraphs
from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.backends.torch.plan_weights import load_network
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.backends.torch.weight_offload import buffer_bytes, num_host_layers, offload_layers
from taco_worker.devices.selection import check_dtype, check_kv_dtype, check_weights_fit
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.ops import LayerOps
from taco_worker.layers.torch_ops import TorchOps
from taco_worker.models.config import ModelConfig
from taco_worker.models.dtypes import dtype_name
from taco_worker.models.lora.factors import read_factors
from taco_worker.models.lora.requested import RequestedAdapters
from taco_worker.models.step_model import describe, with_code_kinds
from taco_worker.quant.registry import stored_as
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

    from taco_kernels.triton.codes.scaled import multiplies_fp8
    from taco_worker.layers.triton_ops import TritonOps
    from taco_worker.sampling.triton_ops import TritonSampling

    graphs = None
    if name == "triton" and not config.enforce_eager:
        graphs = CudaGraphs(
            transfers,
            max_num_seqs=config.max_num_seqs,
            max_seq_len=config.max_seq_len_to_capture,
        )
    layers = TritonOps(scales_fp8=multiplies_fp8(device))
    gpu = torch.cuda.get_device_name(device)
    description = f"{gpu}, {dtype_name(dtype)}, attention by {name}"
    return TorchBackend(attention, layers, TritonSampling(transfers), graphs, description)


def load_torch_model(
    config: WorkerConfig,
    model: ModelConfig,
    transfers: Transfers,
    *,
    dtype: torch.dtype,
    kv_format: KVFormat,
    requested: RequestedAdapters | None = None,
) -> TorchModel:
    """Load a model, whose plan names the adapters that requests may name, and these.

    Raises:
        ValueError: the device, its memory or the configuration does not allow it.
    """
    device = transfers.device
    parts = choose_torch_backend(config, transfers, dtype)
    if kv_format.dtype != dtype:
        _check_kv_dtype(parts.attention, device, kv_format.dtype)
    stored = stored_as(config.model.quantization)
    coded = coded_parameters(model, stored)
    sizes = _weight_sizes(model, coded, dtype)
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
        coded=coded,
        adapters={}
        if requested is None
        else {
            weight: AdapterWeights(factors, dtype, device)
            for weight, factors in read_factors(requested)
        },
    )
    load_network(network, model, seed=config.model.seed, stored_as=stored)
    if on_host:
        offload_layers(network, list(network.layers)[-on_host:], device)
    kinds = {one.layout.kind for rows in coded.values() for one in rows if one.layout}
    return TorchModel(
        network,
        transfers,
        description=with_code_kinds(parts.description, kinds),
        sampling=parts.sampling,
        kv_format=kv_format,
        graphs=parts.graphs,
    )


def _check_kv_dtype(
    attention: AttentionBackend, device: torch.device, kv_dtype: torch.dtype
) -> None:
    """Of a dtype other than the model's."""
    name = dtype_name(kv_dtype)
    if kv_dtype not in EIGHT_BIT_DTYPES:
        raise ValueError(f"a KV cache of {name} needs the CPU kernels, or a model of {name}")
    if not attention.supports_scales:
        raise ValueError(f"a KV cache of {name} needs the triton back end, not {attention.name!r}")
    if device.type == "cuda":
        gpu, capability = (
            torch.cuda.get_device_name(device),
            torch.cuda.get_device_capability(device),
        )
        check_kv_dtype(kv_dtype, gpu, capability)


@dataclass(frozen=True, slots=True)
class _WeightSizes:
    """Bytes of a model's parameters: the total, and each layer's."""

    total: int
    layers: list[int]


def _weight_sizes(model: ModelConfig, coded: CodedParameters, dtype: torch.dtype) -> _WeightSizes:
    layers = [0] * model.plan.num_layers
    total = 0
    for name in model.plan.parameters:
        size = parameter_bytes(model.plan, name, coded.get(name, ()), dtype.itemsize)
        total += size
        if name.startswith("layers."):
            layers[int(name.split(".")[1])] += size
    return _WeightSizes(total, layers)
