"""LightCC under torch's FSDP2: torch shards inside a host, LightCC averages between hosts."""

from __future__ import annotations

import atexit
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from taco_train.collective.communicator import Communicator
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.process_group import connect_process_group
from taco_train.lightcc.settings import start_settings

_communicators: list[Communicator] = []


def fsdp_hook(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Let LightCC average the gradients of a sharded model over the ranks of another mesh.

    Use it in place of a two-dimensional mesh for `fully_shard` (HSDP):

        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("inter", "intra"))
        fully_shard(model, mesh=mesh["intra"])
        fsdp_hook(model, mesh["inter"])

    Args:
        model: all its modules are sharded on CPU, by ranks of one host; all ranks call this.
        mesh: one dimension: the ranks that hold the same shard, on different hosts.

    Raises:
        TypeError: the model is not sharded by `fully_shard`.
        ValueError: the mesh has several dimensions, or is not on the CPU.
        VariableError: a variable of the environment has a value that it cannot have.
        RendezvousError, CommunicationError: the ranks cannot find or reach each other.
    """
    if not isinstance(model, FSDPModule):
        raise TypeError(f"fsdp_hook needs a model of fully_shard, not {type(model).__name__}")
    if mesh.ndim != 1 or mesh.device_type != "cpu":
        raise ValueError(
            f"fsdp_hook needs a mesh of one dimension on the CPU, not of {mesh.ndim} on "
            f"{mesh.device_type}"
        )
    settings = start_settings()
    world = connect_process_group(settings, f"fsdp {len(_communicators)}")
    _communicators.append(world)
    ranks = dist.get_process_group_ranks(mesh.get_group())
    communicator = world.subgroup(ranks, f"shards of {ranks[0]}")
    assert communicator is not None
    _communicators.append(communicator)
    reducer = BucketReducer(settings)
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(_averaging(communicator, reducer, f"fsdp {name}"))


def _averaging(
    communicator: Communicator, reducer: BucketReducer, name: str
) -> Callable[[Tensor], None]:
    """FSDP2's hook of one module: it gets the sums of the gradients within a host."""

    def average(shard: Tensor) -> None:
        with torch.no_grad():
            reducer.all_reduce(communicator, shard, "average", [name], [shard.numel()])

    return average


@atexit.register
def _close() -> None:
    while _communicators:
        _communicators.pop().close()
