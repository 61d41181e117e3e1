"""The arguments of `taco_llm bench throughput` and `bench latency`, beside the engine's."""

from dataclasses import dataclass

from taco_llm.args.flags import flag
from taco_llm.bench.output_files import OFFLINE_SUFFIXES, check_suffixes
from taco_llm.bench.workload_args import WorkloadArgs, check_at_least


def _output_file() -> tuple[str, ...]:
    field: tuple[str, ...] = flag(
        "JSON file that results go to. May be given several times.",
        default=(),
        several="append",
        metavar="FILE",
    )
    return field


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchThroughputArgs(WorkloadArgs):
    """How many requests of which lengths the engine gets at once.

    Raises:
        ConfigurationError: a value is out of range.
    """

    output_file: tuple[str, ...] = _output_file()
    disable_tqdm: bool = flag("Show no progress bar.", default=False)

    def __post_init__(self) -> None:
        WorkloadArgs.__post_init__(self)
        check_suffixes(self.output_file, OFFLINE_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLatencyArgs:
    """One batch, over and over.

    Raises:
        ConfigurationError: a value is out of range.
    """

    batch_size: int = flag("Sequences of the batch.", default=1, parse=int, metavar="SEQUENCES")
    input_len: int = flag("Tokens of each prompt.", default=128, parse=int, metavar="TOKENS")
    output_len: int = flag(
        "Tokens to generate for each prompt.", default=128, parse=int, metavar="TOKENS"
    )
    num_iters_warmup: int = flag(
        "Batches before the clock starts.", default=1, parse=int, metavar="BATCHES"
    )
    num_iters: int = flag("Batches that are measured.", default=10, parse=int, metavar="BATCHES")
    random_vocab_size: int = flag(
        "Prompts hold random ids below this one.", default=1000, parse=int, metavar="TOKENS"
    )
    output_file: tuple[str, ...] = _output_file()
    disable_tqdm: bool = flag("Show no progress bar.", default=False)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size", "input_len", "output_len", "num_iters")
        check_at_least(self, 0, "num_iters_warmup")
        check_at_least(self, 17, "random_vocab_size")
        check_suffixes(self.output_file, OFFLINE_SUFFIXES)
