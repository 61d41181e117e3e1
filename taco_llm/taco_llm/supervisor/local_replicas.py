"""Replicas on this machine: worker and draft worker processes, each with its GPU or CPU cores."""

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
    """Makes `count` workers that connect to `scheduler`, and a draft worker for each if needed.

    Raises:
        ConfigurationError: a model cannot be found, or several workers would share one GPU.
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
    """The configurations of the workers. Several workers get one GPU each, or equal parts of the
    cores; a single worker keeps its own settings.
    """
    config = engine.worker_config(scheduler, num_local_workers=count)
    if count == 1:
        yield config
        return
    if config.device.startswith("cuda:"):
        raise ConfigurationError(
            f"data_parallel_size {count} needs {count} GPUs, but device {config.device} is one "
            "GPU: give device cuda"
        )
    num_threads = config.num_threads or max(1, available_cores().num_threads() // count)
    for index in range(count):
        yield replace(
            config,
            name=f"worker-{index}",
            device=config.device if config.device == "cpu" else f"{config.device}:{index}",
            num_threads=num_threads,
            # Only the first worker warns about GPU options without effect.
            given_gpu_options=config.given_gpu_options if index == 0 else (),
            # Each worker needs its own license seat. On CPUs the index makes its id unique.
            license=replace(engine, license_index=index).license_config(),
        )
