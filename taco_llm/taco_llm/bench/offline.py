"""Runs `taco_llm bench throughput` and `bench latency` with the engine in this process."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
from tqdm import tqdm

from taco_gateway.engine.engine_client import EngineError
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import given
from taco_llm.bench.environment import environment
from taco_llm.bench.offline_args import BenchLatencyArgs, BenchThroughputArgs
from taco_llm.bench.output_files import make_folders, write_json
from taco_llm.bench.report import percentile_name
from taco_llm.bench.workload import BenchRequest, Workload
from taco_llm.bench.workload_args import LOWEST_TOKEN_ID
from taco_llm.llm import LLM
from taco_proto.errors import ConfigurationError, InvalidParameterError
from taco_proto.sampling_params import SamplingParams

PERCENTILES = (10, 25, 50, 75, 90, 99)


def bench_throughput(
    engine: Mapping[str, Any], args: BenchThroughputArgs, argv: Sequence[str]
) -> int:
    """Measures throughput: gives the engine all requests at once. Answers have full length.

    Args:
        engine: arguments of `EngineArgs`.
        argv: the command line, for the result files.

    Raises:
        ConfigurationError: the engine, the dataset or an output file cannot be used.
    """
    make_folders(args.output_file)
    engine_args = EngineArgs(**engine)
    workload = Workload(args, load_tokenizer(engine_args.model_config()), as_text=False)
    warmup, *requests = workload.requests(engine_args.seed, 1)
    with _engine(engine) as llm:
        _generate(llm, [warmup], args.temperature, show=False)
        start = perf_counter()
        outputs = _generate(llm, requests, args.temperature, show=_shown(args))
        elapsed = perf_counter() - start
    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    num_output_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    figures = {
        "elapsed_time": elapsed,
        "num_requests": len(outputs),
        "total_input_tokens": num_prompt_tokens,
        "total_output_tokens": num_output_tokens,
        "requests_per_second": len(outputs) / elapsed,
        "output_tokens_per_second": num_output_tokens / elapsed,
        "tokens_per_second": (num_prompt_tokens + num_output_tokens) / elapsed,
    }
    print(
        f"Throughput: {figures['requests_per_second']:.2f} requests/s, "
        f"{figures['tokens_per_second']:.2f} total tokens/s, "
        f"{figures['output_tokens_per_second']:.2f} output tokens/s\n"
        f"{len(outputs)} requests, {num_prompt_tokens} input tokens, "
        f"{num_output_tokens} output tokens in {elapsed:.2f} s"
    )
    _write(args, engine_args, figures, argv)
    return 0


def bench_latency(engine: Mapping[str, Any], args: BenchLatencyArgs, argv: Sequence[str]) -> int:
    """Measures latency: runs one batch of equal requests at a time. Args: see `bench_throughput`.

    Each batch has new prompts, so that the prefix cache does not shorten it.
    """
    make_folders(args.output_file)
    engine_args = EngineArgs(**engine)
    rng = np.random.default_rng(engine_args.seed)

    def batch() -> list[BenchRequest]:
        shape = (args.batch_size, args.input_len)
        prompts = rng.integers(LOWEST_TOKEN_ID, args.random_vocab_size, size=shape).tolist()
        return [BenchRequest(prompt, args.output_len, args.input_len) for prompt in prompts]

    seconds = []
    with _engine(engine) as llm:
        for _ in range(args.num_iters_warmup):
            _generate(llm, batch(), 0.0, show=False)
        for _ in tqdm(range(args.num_iters), desc="Batches", disable=not _shown(args)):
            requests = batch()
            start = perf_counter()
            _generate(llm, requests, 0.0, show=False)
            seconds.append(perf_counter() - start)
    percentiles = {percent: float(np.percentile(seconds, percent)) for percent in PERCENTILES}
    figures: dict[str, Any] = {
        "mean_latency": float(np.mean(seconds)),
        "median_latency": float(np.median(seconds)),
        **{f"{percentile_name(p)}_latency": value for p, value in percentiles.items()},
        "latencies": seconds,
    }
    print(f"Mean latency (s): {figures['mean_latency']:.4f}")
    for percent, value in percentiles.items():
        print(f"{percentile_name(percent).upper()} latency (s): {value:.4f}")
    _write(args, engine_args, figures, argv)
    return 0


@contextmanager
def _engine(arguments: Mapping[str, Any]) -> Iterator[LLM]:
    """An engine whose request errors become one-line errors of the command.

    Raises:
        ConfigurationError: a request is invalid for the model, or failed.
    """
    with LLM(**arguments) as llm:
        try:
            yield llm
        except (InvalidParameterError, EngineError) as error:
            raise ConfigurationError(str(error)) from None


def _generate(
    llm: LLM, requests: Sequence[BenchRequest], temperature: float, *, show: bool
) -> Sequence[Any]:
    prompts = [request.prompt for request in requests]
    params = [
        SamplingParams(temperature=temperature, max_tokens=request.output_len, ignore_eos=True)
        for request in requests
    ]
    return llm.generate(prompts, params, use_tqdm=show)


def _shown(args: BenchThroughputArgs | BenchLatencyArgs) -> bool:
    return args.progress and sys.stderr.isatty()


def _write(
    args: BenchThroughputArgs | BenchLatencyArgs,
    engine: EngineArgs,
    figures: Mapping[str, Any],
    argv: Sequence[str],
) -> None:
    document = {
        **environment(argv),
        "settings": {**asdict(args), "engine": given(EngineArgs, asdict(engine))},
        "figures": figures,
    }
    for path in args.output_file:
        write_json(path, document)
        print(f"Wrote {path}")
