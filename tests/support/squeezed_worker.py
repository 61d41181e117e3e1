"""A worker whose process may not take the memory that a large step needs: `python -m
support.squeezed_worker MODEL` prints what it gives before, meanwhile and afterwards, as JSON.
"""

import json
import logging
import resource
import sys
from dataclasses import asdict, dataclass

import psutil

from support.plans import Join, make_plan
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput
from taco_worker.worker import Worker

NUM_SEQUENCES = 8
PROMPT_TOKENS = 256
NUM_DECODES = 3
BLOCK_SIZE = 16
SPARE_BYTES = 4 * 2**20  # enough for an eighth of the prompts' step, or less


@dataclass
class Trial:
    """Of all steps: errors, tokens, log probabilities; and how many steps were cut up."""

    errors: list[str]
    token_ids: list[int]
    logprobs: list[float]
    num_cuts: int


class Cuts(logging.Handler):
    """Counts steps that were cut up."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "retrying it as smaller steps" in record.getMessage()


def main() -> None:
    config = WorkerConfig(
        model=ModelConfig(model=sys.argv[1], dtype="float32"),
        num_blocks=1 + NUM_SEQUENCES * (PROMPT_TOKENS // BLOCK_SIZE + 1),
        max_num_seqs=NUM_SEQUENCES,
        num_threads=1,
    )
    logging.getLogger("taco.worker").addHandler(cuts := Cuts())
    whole = run(Worker(config), 1, cuts)
    worker = Worker(config)
    limit(psutil.Process().memory_info().vms + SPARE_BYTES)
    squeezed = run(worker, 1, cuts)
    limit(resource.RLIM_INFINITY)
    print(json.dumps([asdict(trial) for trial in (whole, squeezed, run(worker, 2, cuts))]))


def limit(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, resource.RLIM_INFINITY))


def run(worker: Worker, epoch: int, cuts: Cuts) -> Trial:
    """All prompts in one step, then some tokens."""
    before = cuts.count
    per_sequence = PROMPT_TOKENS // BLOCK_SIZE + 1
    joined = [
        Join(
            slot,
            [3 + (7 * slot + i) % 200 for i in range(PROMPT_TOKENS)],
            list(range(1 + slot * per_sequence, 1 + (slot + 1) * per_sequence)),
            sampling=SamplingParams(temperature=0.0, seed=slot, logprobs=2),
        )
        for slot in range(NUM_SEQUENCES)
    ]
    slots = range(NUM_SEQUENCES)
    plans = [
        make_plan(dict.fromkeys(slots, PROMPT_TOKENS), joined=joined, epoch=epoch),
        *(
            make_plan(dict.fromkeys(slots, 1), epoch=epoch, step_id=2 + step)
            for step in range(NUM_DECODES)
        ),
    ]
    outputs = [worker.execute(plan) for plan in plans]
    return Trial(
        errors=[output.error for output in outputs if output.error],
        token_ids=[token for output in outputs for token in output.token_ids.tolist()],
        logprobs=[number for output in outputs for number in logprobs_of(output)],
        num_cuts=cuts.count - before,
    )


def logprobs_of(output: StepOutput) -> list[float]:
    assert output.logprobs is not None or output.error
    return output.logprobs.logprobs.tolist() if output.logprobs is not None else []


if __name__ == "__main__":
    main()
