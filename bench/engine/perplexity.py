"""Perplexity of the demo model on TACO's own sources, by storage type of weights and KV.

    python -m bench.engine.perplexity [--model demo] [--window 512] [--save]

Each file is cut into windows, and each window is read from its beginning. All tokens but a
window's first count.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench import record
from taco_llm import LLM, SamplingParams
from taco_llm.args.model_location import locate_model

ROOT = Path(__file__).parents[2]
TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, int8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8, int8 KV": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    windows = read_windows(args.model, args.window)
    figures: dict[str, float] = {}
    num_tokens = sum(len(window) - 1 for window in windows)
    for name, types in TYPES.items():
        with LLM(args.model, max_num_seqs=16, **types) as llm:
            perplexity = measure(llm, windows)
        figures[name] = round(perplexity, 4)
        print(f"{name:20} {perplexity:.4f}")
    print(f"{num_tokens} tokens")
    if args.save:
        record.save("perplexity", {"tokens": num_tokens, "perplexity": figures})


def read_windows(model: str, size: int) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(Path(locate_model(model)) / "tokenizer.json"))
    windows: list[list[int]] = []
    for path in sorted(ROOT.glob("scheduler/taco_scheduler/*.py")):
        ids = tokenizer.encode(path.read_text(), add_special_tokens=False).ids
        windows += [ids[start : start + size] for start in range(0, len(ids) - 1, size)]
    return windows


def measure(llm: LLM, windows: list[list[int]]) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    outputs = llm.generate(sampling_params=params, prompt_token_ids=windows, use_tqdm=False)
    logprobs = [
        entry[token_id].logprob
        for window, output in zip(windows, outputs, strict=True)
        for token_id, entry in zip(window, output.prompt_logprobs or [], strict=True)
        if entry is not None
    ]
    return math.exp(-sum(logprobs) / len(logprobs))


if __name__ == "__main__":
    main()
