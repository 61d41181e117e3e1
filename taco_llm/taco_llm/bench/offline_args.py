"""Arguments of `taco_llm bench throughput` and `bench latency`, besides those of the engine."""

from dataclasses import dataclass

from taco_llm.args.flags import flag
from taco_llm.bench.output_files import OFFLINE_SUFFIXES, check_suffixes
from taco_llm.bench.workload_args import WorkloadArgs, check_at_least, progress_flag


def _output_file() -> tuple[str, ...]:
    field: tuple[str, ...] = flag(
        "JSON file for the results. Repeat the flag for several files.",
        default=(),
        several="append",
        metavar="FILE",
    )
    return field


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchThroughputArgs(WorkloadArgs):
    """Arguments of the throughput benchmark: all requests are sent to the engine at once.

    Raises:
        ConfigurationError: a value is out of range.
    """

    output_file: tuple[str, ...] = _output_file()
    progress: bool = progress_flag()

    def __post_init__(self) -> None:
        WorkloadArgs.__post_init__(self)
        check_suffixes(self.output_file, OFFLINE_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLatencyArgs:
    """Arguments of the latency benchmark: the engine runs equal batches one after another.

    Raises:
        ConfigurationError: a value is out of range.
    """

    batch_size: int = flag("Sequences in a batch.", default=1, parse=int, metavar="SEQUENCES")
    input_len: int = flag("Tokens of each prompt.", default=128, parse=int, metavar="TOKENS")
    output_len: int = flag(
        "Tokens to generate for each prompt.", default=128, parse=int, metavar="TOKENS"
    )
    num_iters_warmup: int = flag(
        "Warm-up batches before the measurement.", default=1, parse=int, metavar="BATCHES"
    )
    num_iters: int = flag("Measured batches.", default=10, parse=int, metavar="BATCHES")
    random_vocab_size: int = flag(
        "Prompts consist of random token ids below this number.",
        default=1000,
        parse=int,
        metavar="TOKENS",
    )
    output_file: tuple[str, ...] = _output_file()
    progress: bool = progress_flag()

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size", "input_len", "output_len", "num_iters")
        check_at_least(self, 0, "num_iters_warmup")
        check_at_least(self, 17, "random_vocab_size")
        check_suffixes(self.output_file, OFFLINE_SUFFIXES)
