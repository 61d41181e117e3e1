"""Arguments of a benchmark's workload: prompts of a dataset, or random prompts of given lengths."""

from dataclasses import dataclass
from typing import Any

from taco_llm.args.flags import flag
from taco_proto.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadArgs:
    """Arguments that `taco_llm bench serve` and `taco_llm bench throughput` share.

    Raises:
        ConfigurationError: a value is out of range.
    """

    num_prompts: int = flag(
        "Number of requests in a run.", default=100, parse=int, metavar="REQUESTS"
    )
    dataset_path: str | None = flag(
        "File with prompts: ShareGPT's JSON (a list of conversations), or JSON lines with a prompt "
        "or text field. Default: prompts of random token ids.",
        default=None,
        metavar="FILE",
    )
    dataset_max_len: int = flag(
        "Maximum tokens of a conversation in the dataset, prompt and answer together. Longer ones "
        "are left out.",
        default=2048,
        parse=int,
        metavar="TOKENS",
    )
    output_len: int | None = flag(
        "Tokens to generate for each prompt of the dataset. Default: the length of the dataset's "
        "own answer, which needs --tokenizer.",
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    random_input_len: int = flag(
        "Tokens of a random prompt, without its shared prefix.",
        default=128,
        parse=int,
        metavar="TOKENS",
    )
    random_output_len: int = flag(
        "Tokens to generate for a random prompt.", default=128, parse=int, metavar="TOKENS"
    )
    random_range_ratio: float = flag(
        "Spread of random lengths: with ratio R they are uniform from (1 - R) to (1 + R) times the "
        "length. 0 makes all lengths equal.",
        default=0.0,
        parse=float,
        metavar="RATIO",
    )
    random_vocab_size: int | None = flag(
        "Random prompts consist of token ids below this number. Default: the size of --tokenizer, "
        "or 1000 without a tokenizer.",
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    shared_prefix_len: int = flag(
        "Tokens of the shared prefix at the start of each prompt.",
        default=0,
        parse=int,
        metavar="TOKENS",
    )
    num_prefix_groups: int = flag(
        "Number of different shared prefixes. Prompts use them in turn.",
        default=1,
        parse=int,
        metavar="GROUPS",
    )
    temperature: float = flag(
        "Sampling temperature. 0 is greedy.", default=0.0, parse=float, metavar="NUMBER"
    )

    def __post_init__(self) -> None:
        check_at_least(
            self,
            1,
            "num_prompts",
            "dataset_max_len",
            "output_len",
            "random_input_len",
            "random_output_len",
            "num_prefix_groups",
        )
        check_at_least(self, LOWEST_TOKEN_ID + 1, "random_vocab_size")
        check_at_least(self, 0, "shared_prefix_len", "temperature")
        if not 0 <= self.random_range_ratio < 1:
            raise ArgumentError("random_range_ratio must be at least 0 and below 1")


def progress_flag() -> Any:
    """The field of --progress, which all benchmarks have."""
    return flag(
        "Show a progress bar if standard error is a terminal.",
        default=True,
        old_negations=("disable_tqdm",),
    )


# Lower ids are the special tokens of many vocabularies.
LOWEST_TOKEN_ID = 16


def check_at_least(args: object, low: float, *names: str) -> None:
    """Raises ConfigurationError if an attribute of `args` is below `low`. None passes."""
    for name in names:
        value = getattr(args, name)
        if value is not None and not value >= low:
            raise ArgumentError(f"{name} must be at least {low}, got {value}")
