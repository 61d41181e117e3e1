"""LightCC under torch's FSDP2: torch shards inside a host, LightCC averages between hosts."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from taco_train.collective.communicator import Communicator
from taco_train.collective.errors import CommunicationError
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.errors import CollectiveError
from taco_train.lightcc.process_group import connect_process_group
from taco_train.lightcc.settings import start_settings

_communicators: list[Communicator] = []
_hooked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def fsdp_hook(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Let LightCC average the gradients of a sharded model over the ranks of another mesh.

    Use it in place of a two-dimensional mesh for `fully_shard` (HSDP):

        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("inter", "intra"))
        fully_shard(model, mesh=mesh["intra"])
        fsdp_hook(model, mesh["inter"])

    Args:
        model: all its modules are sharded on CPU, by ranks of one host; all ranks call this.
        mesh: one dimension: the ranks that hold the same shard, on different hosts.

    Where averaging fails, since a rank is lost for instance, `backward` raises CollectiveError.

    Raises:
        TypeError: the model is not sharded by `fully_shard`, or the mesh is no DeviceMesh.
        ValueError: the mesh has several dimensions, is not on the CPU, or has ranks that hold
            different shards, or the model was hooked before.
        VariableError: a variable of the environment has a value that it cannot have.
        RendezvousError, CommunicationError: the ranks cannot find or reach each other.
    """
    if not isinstance(model, FSDPModule):
        raise TypeError(f"fsdp_hook needs a model of fully_shard, not {type(model).__name__}")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"fsdp_hook needs a DeviceMesh, not {type(mesh).__name__}")
    if model in _hooked:
        raise ValueError("the model has LightCC's hook already")
    if mesh.ndim != 1 or mesh.device_type != "cpu":
        raise ValueError(
            f"fsdp_hook needs a mesh of one dimension on the CPU, not of {mesh.ndim} on "
            f"{mesh.device_type}"
        )
    ranks = dist.get_process_group_ranks(mesh.get_group())
    _check_shards(model, ranks)
    settings = start_settings()
    world = connect_process_group(settings, f"fsdp {len(_communicators)}")
    _communicators.append(world)
    communicator = world.subgroup(ranks, f"shards of {ranks[0]}")
    assert communicator is not None
    _communicators.append(communicator)
    reducer = BucketReducer(settings)
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(_averaging(communicator, reducer, f"fsdp {name}"))
    _hooked.add(model)


def _check_shards(model: torch.nn.Module, ranks: Sequence[int]) -> None:
    """Raises ValueError where averages over these ranks would mix different shards."""
    for name, one in model.named_parameters():
        if not isinstance(one, DTensor):
            continue
        holders = set(one.device_mesh.mesh.flatten().tolist()) - {dist.get_rank()}
        if others := sorted(holders.intersection(ranks)):
            raise ValueError(
                f"fsdp_hook averages over ranks {ranks}, but {others} of them hold other shards of "
                f"{name}: pass the other dimension of the mesh than fully_shard has"
            )


def _averaging(
    communicator: Communicator, reducer: BucketReducer, name: str
) -> Callable[[Tensor], None]:
    """FSDP2's hook of one module: it gets the sums of the gradients within a host."""

    def average(shard: Tensor) -> None:
        try:
            with torch.no_grad():
                reducer.all_reduce(communicator, shard, "average", [name], [shard.numel()])
        except CommunicationError as error:
            raise CollectiveError(str(error)) from error

    return average


@atexit.register
def _close() -> None:
    while _communicators:
        _communicators.pop().close()
