"""A worker's process that dies, as of a bad kernel, when a marked prompt enters its batch.

`python -m support.fragile_worker worker` is `python -m taco_llm.cli.child worker` with that death,
and with a minimum time for each step: workers whose steps last equally long run evenly on a busy
machine, and leave time to the processes that watch them.
"""

import os
import signal
import sys
import time
from array import array
from collections.abc import Callable

from taco_llm.cli import child
from taco_proto.config import WorkerConfig
from taco_proto.steps import StepOutput, StepPlan
from taco_worker import server
from taco_worker.worker import Worker
from taco_worker.worker_loading import load_worker

MARK = [4001, 4002, 4003, 4001]  # tokens of a prompt; no answer ever holds them

STEP_SECONDS = "TEST_STEP_SECONDS"  # the environment's name for that time

_MARK_BYTES = array("i", MARK).tobytes()


def main() -> int:
    step_seconds = float(os.environ.get(STEP_SECONDS, "0"))

    def load_fragile(config: WorkerConfig) -> Worker:
        worker = load_worker(config)
        submit = worker.submit

        def submit_or_die(plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None:
            if plan.joined is not None and _MARK_BYTES in plan.joined.token_ids.tobytes():
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(step_seconds)
            submit(plan, deliver)

        worker.submit = submit_or_die  # type: ignore[method-assign]
        return worker

    server.load_worker = load_fragile  # type: ignore[assignment, attr-defined]
    return child.main()


if __name__ == "__main__":
    sys.exit(main())
