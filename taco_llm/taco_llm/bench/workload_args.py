"""Which requests a benchmark sends: a dataset's, or random ones of given lengths."""

from dataclasses import dataclass

from taco_llm.args.flags import flag
from taco_proto.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadArgs:
    """Arguments that `taco_llm bench serve` and `taco_llm bench throughput` share.

    Raises:
        ConfigurationError: a value is out of range.
    """

    num_prompts: int = flag(
        "Number of requests of a run.", default=100, parse=int, metavar="REQUESTS"
    )
    dataset_path: str | None = flag(
        "File with prompts: ShareGPT's JSON (a list of conversations), or JSON lines with a prompt "
        "or text field. Without it prompts are random token ids.",
        default=None,
        metavar="FILE",
    )
    dataset_max_len: int = flag(
        "Leave out the dataset's conversations that have more tokens, prompt and answer together.",
        default=2048,
        parse=int,
        metavar="TOKENS",
    )
    output_len: int | None = flag(
        "Tokens to generate for each prompt of the dataset. Without it as many as the dataset's "
        "own answer has, which takes a tokenizer to count.",
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    random_input_len: int = flag(
        "Tokens of a random prompt, a shared prefix not counted.",
        default=128,
        parse=int,
        metavar="TOKENS",
    )
    random_output_len: int = flag(
        "Tokens to generate for a random prompt.", default=128, parse=int, metavar="TOKENS"
    )
    random_range_ratio: float = flag(
        "Spread of random lengths: with R they are uniform from (1 - R) to (1 + R) times the "
        "length. 0 makes them all equal.",
        default=0.0,
        parse=float,
        metavar="R",
    )
    random_vocab_size: int | None = flag(
        "Random prompts hold ids below this one. Without it the tokenizer's size, or 1000 where no "
        "tokenizer is given.",
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    shared_prefix_len: int = flag(
        "Tokens that prompts share at their beginning, in front of what is each one's own.",
        default=0,
        parse=int,
        metavar="TOKENS",
    )
    num_prefix_groups: int = flag(
        "Number of different shared prefixes; prompts take turns among them.",
        default=1,
        parse=int,
        metavar="GROUPS",
    )
    temperature: float = flag("Sampling temperature. 0 is greedy.", default=0.0, parse=float)

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
            raise ConfigurationError("random_range_ratio must be at least 0 and below 1")


# Lower ids are the special tokens of many vocabularies.
LOWEST_TOKEN_ID = 16


def check_at_least(args: object, low: float, *names: str) -> None:
    """Raises ConfigurationError where an attribute of `args` is below `low`; None is fine."""
    for name in names:
        value = getattr(args, name)
        if value is not None and not value >= low:
            raise ConfigurationError(f"{name} must be at least {low}, got {value}")
