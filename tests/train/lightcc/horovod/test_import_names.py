"""Names that scripts for Horovod import are there, and torch is not loaded by `import horovod`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.train_processes import RankPool

# Lines of public scripts and libraries (Lightning, Ludwig, GRACE, ElasticDL, raydp).
LINES = """\
import horovod.torch as hvd
from horovod.torch.mpi_ops import Average, Sum, allgather_async, allreduce_async_, poll, rank, size
from horovod.torch.mpi_ops import reducescatter_async, synchronize
from horovod.torch import allgather, allreduce, allreduce_, alltoall_async, broadcast_async
from horovod.torch import elastic, nccl_built
from horovod.torch.compression import Compression
from horovod.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state
from horovod.torch.functions import broadcast_parameters
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.torch.elastic import ElasticSampler, ObjectState, TorchState, run
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.common.elastic import ObjectState, State
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import gloo_built, mpi_built, nccl_built
from horovod.ray import ElasticRayExecutor, RayExecutor
from horovod.ray.elastic import ElasticRayExecutor, RayHostDiscovery
from horovod.ray.runner import RayExecutor
from horovod import run
""".splitlines()


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_script(line: str) -> None:
    exec(line, {})


def test_import_horovod_is_light() -> None:
    code = """
import sys
import horovod
import taco_train.lightcc.on_ray.executor
assert not {"torch", "ray"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ray_is_optional() -> None:
    with RankPool(1) as pool:
        assert pool.run(import_without_ray) == [
            "horovod.ray needs Ray: pip install 'light-horovod[ray]'"
        ]


def import_without_ray() -> str:
    """In a process that has imported nothing of horovod."""
    assert "horovod" not in sys.modules
    sys.modules["ray"] = None  # type: ignore[assignment]  # as if it was not installed
    import horovod.torch

    with pytest.raises(ImportError) as failure:
        import horovod.ray  # noqa: F401
    return str(failure.value)
