"""The workers of `taco_llm serve` on this machine, each with its share of it."""

from collections.abc import Iterator
from dataclasses import replace

from taco_common.logging import LogConfig
from taco_kernels.native.cores import available_cores
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import DRAFTER, WORKER
from taco_llm.supervisor.child_process import ChildProcess
from taco_proto.config import TlsConfig, WorkerConfig
from taco_proto.errors import ConfigurationError


def local_replicas(
    engine: EngineArgs,
    scheduler: str,
    count: int,
    tls: TlsConfig | None = None,
    log: LogConfig | None = None,
) -> list[ChildProcess]:
    """`count` workers that dial `scheduler`, and a draft worker for each where one is asked for.

    Raises:
        ConfigurationError: a model cannot be found, or several workers are to share one GPU.
    """
    workers = [replace(config, tls=tls) for config in _worker_configs(engine, scheduler, count)]
    children = [
        ChildProcess(WORKER, config, config.name if count > 1 else None, log) for config in workers
    ]
    if (drafter := engine.drafter_config(scheduler)) is not None:
        for index, worker in enumerate(workers):
            config = replace(
                drafter, name=f"drafter-{index}", num_threads=worker.num_threads, tls=tls
            )
            name = config.name if count > 1 else None
            children.append(ChildProcess(DRAFTER, config, name, log))
    return children


def _worker_configs(engine: EngineArgs, scheduler: str, count: int) -> Iterator[WorkerConfig]:
    """Several workers get a GPU, or an equal part of the cores, each; one gets what it asks for."""
    config = engine.worker_config(scheduler, num_local_workers=count)
    if count == 1:
        yield config
        return
    if config.device.startswith("cuda:"):
        raise ConfigurationError(
            f"device {config.device} is one GPU, and data_parallel_size {count} asks for as many: "
            "give cuda"
        )
    num_threads = config.num_threads or max(1, available_cores().num_threads() // count)
    for index in range(count):
        yield replace(
            config,
            name=f"worker-{index}",
            device=config.device if config.device == "cpu" else f"{config.device}:{index}",
            num_threads=num_threads,
            # One worker's log lines are enough.
            given_gpu_options=config.given_gpu_options if index == 0 else (),
            # A seat is one worker's: on CPUs, where the host's id stands for it, each has an id.
            license=replace(engine, license_index=index).license_config(),
        )
