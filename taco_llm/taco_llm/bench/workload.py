"""Makes the requests of a run, from a dataset or at random. Equal seeds make equal requests."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_llm.bench.dataset import Sample, read_dataset
from taco_llm.bench.workload_args import LOWEST_TOKEN_ID, WorkloadArgs
from taco_proto.errors import ConfigurationError

LOGGER = logging.getLogger("taco.bench")

VOCAB_SIZE_WITHOUT_TOKENIZER = 1000
# Minimum tokens of a dataset's prompts and answers. Shorter ones are not real conversations.
_MIN_TOKENS = 4


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A request of a benchmark.

    Attributes:
        prompt: a text or token ids.
        output_len: tokens to generate.
        prompt_len: tokens of the prompt; 0 if unknown.
    """

    prompt: str | list[int]
    output_len: int
    prompt_len: int


class Workload:
    """The requests of a benchmark.

    Args:
        tokenizer: counts the dataset's tokens and makes text of random ids. Without one, the
            arguments must set the lengths.
        as_text: whether prompts must be text, as in chat messages.

    Raises:
        ConfigurationError: the dataset cannot be read, or a tokenizer is needed.
    """

    def __init__(self, args: WorkloadArgs, tokenizer: Tokenizer | None, *, as_text: bool) -> None:
        self._args = args
        self._tokenizer = tokenizer
        self._as_text = as_text
        self._samples: list[Sample] = []
        if args.dataset_path is not None:
            self._samples = read_dataset(args.dataset_path)
            if tokenizer is None and args.output_len is None:
                raise ConfigurationError(
                    "a dataset needs --tokenizer, which counts its answers' tokens, or --output-len"
                )
        needs_text = as_text or args.dataset_path is not None
        random_part = args.dataset_path is None or args.shared_prefix_len > 0
        if needs_text and random_part and tokenizer is None:
            what = "shared prefixes" if args.dataset_path is not None else "random prompts"
            raise ConfigurationError(f"{what} need --tokenizer if prompts are text")

    def requests(self, seed: int, num_warmups: int = 0) -> list[BenchRequest]:
        """`num_warmups` requests without a shared prefix, followed by `num_prompts` requests."""
        rng = np.random.default_rng(seed)
        count = num_warmups + self._args.num_prompts
        own = self._random(rng, count) if not self._samples else self._sampled(rng, count)
        prefixes = [
            self._random_ids(rng, self._args.shared_prefix_len)
            for _ in range(self._args.num_prefix_groups)
        ]
        return own[:num_warmups] + [
            self._with_prefix(prefixes[index % len(prefixes)], request)
            for index, request in enumerate(own[num_warmups:])
        ]

    def _random(self, rng: np.random.Generator, count: int) -> list[BenchRequest]:
        input_lens = self._lengths(rng, self._args.random_input_len, count)
        output_lens = self._lengths(rng, self._args.random_output_len, count)
        return [
            self._as_request(self._random_ids(rng, input_len), output_len)
            for input_len, output_len in zip(input_lens, output_lens, strict=True)
        ]

    def _lengths(self, rng: np.random.Generator, length: int, count: int) -> list[int]:
        ratio = self._args.random_range_ratio
        lowest = max(1, math.floor(length * (1 - ratio)))
        highest = max(lowest, math.ceil(length * (1 + ratio)))
        lengths: list[int] = rng.integers(lowest, highest, size=count, endpoint=True).tolist()
        return lengths

    def _random_ids(self, rng: np.random.Generator, length: int) -> list[int]:
        vocab_size = self._args.random_vocab_size or (
            VOCAB_SIZE_WITHOUT_TOKENIZER if self._tokenizer is None else self._tokenizer.vocab_size
        )
        ids: list[int] = rng.integers(LOWEST_TOKEN_ID, vocab_size, size=length).tolist()
        return ids

    def _as_request(self, token_ids: list[int], output_len: int) -> BenchRequest:
        if not self._as_text:
            return BenchRequest(token_ids, output_len, len(token_ids))
        return BenchRequest(self._text(token_ids), output_len, len(token_ids))

    def _text(self, token_ids: list[int]) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(token_ids)

    def _with_prefix(self, prefix: list[int], request: BenchRequest) -> BenchRequest:
        if not prefix:
            return request
        prompt = request.prompt
        joined = self._text(prefix) + prompt if isinstance(prompt, str) else prefix + prompt
        prompt_len = len(prefix) + request.prompt_len if request.prompt_len else 0
        return BenchRequest(joined, request.output_len, prompt_len)

    def _sampled(self, rng: np.random.Generator, count: int) -> list[BenchRequest]:
        """Samples in random order. They are repeated if too few of the dataset fit."""
        order = rng.permutation(len(self._samples)).tolist()
        requests: list[BenchRequest] = []
        for request in self._fitting(order):
            requests.append(request)
            if len(requests) == count:
                return requests
        if not requests:
            raise ConfigurationError(
                f"no conversation of {self._args.dataset_path} fits: prompt and answer need at "
                f"least {_MIN_TOKENS} tokens each, and at most --dataset-max-len "
                f"{self._args.dataset_max_len} together"
            )
        LOGGER.warning(
            "the dataset has %d usable conversations for %d requests: they are repeated",
            len(requests),
            count,
        )
        return [requests[index % len(requests)] for index in range(count)]

    def _fitting(self, order: list[int]) -> Iterator[BenchRequest]:
        fixed = self._args.output_len
        for sample in (self._samples[index] for index in order):
            if self._tokenizer is None:
                assert fixed is not None  # checked by the constructor
                yield BenchRequest(sample.prompt, fixed, 0)
                continue
            if fixed is None and sample.answer is None:
                continue
            prompt_len = len(self._tokenizer.encode(sample.prompt))
            output_len = fixed or self._count(sample.answer or "")
            fits = prompt_len + output_len <= self._args.dataset_max_len
            if fits and prompt_len >= _MIN_TOKENS and (fixed or output_len >= _MIN_TOKENS):
                yield BenchRequest(sample.prompt, output_len, prompt_len)

    def _count(self, text: str) -> int:
        assert self._tokenizer is not None
        return len(self._tokenizer.encode(text, add_special_tokens=False))
