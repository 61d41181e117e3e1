"""Drives an engine and a fake worker without a clock; collects what clients receive."""

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from support.fake_drafter import FakeDrafter
from support.fake_worker import FakeWorker, worker_info
from taco_common.metrics import exposition
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import SchedulerConfig
from taco_proto.drafts import DraftReply
from taco_proto.kv_tiers import StoreReport
from taco_proto.output_batch import (
    output_errors,
    output_logprobs,
    output_prompt_logprobs,
    output_rows,
)
from taco_proto.requests import FinishReason, GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_scheduler.core.engine import Engine
from taco_scheduler.core.replica import Replica
from taco_scheduler.metrics.exposition import engine_registry
from taco_scheduler.speculation.speculation import Speculation
from taco_scheduler.state.output_buffer import OutputBuffer


def pack(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def make_request(
    handle: int, prompt: list[int], *, emitted: list[int] | None = None, **fields: object
) -> GenerateRequest:
    """Fields of `GenerateRequest` and of `SamplingParams` alike."""
    names = {"pins", "prompt_cache_key", "quota_charged", "emitted_token_ids", "finished_indexes"}
    names |= {"priority", "deadline", "cache_salt", "adapter", "request_id", "tenant", "grammar"}
    own = {name: value for name, value in fields.items() if name in names}
    sampling: dict[str, object] = {"seed": 1, "max_tokens": 8}
    sampling |= {name: value for name, value in fields.items() if name not in names}
    return GenerateRequest(
        handle=handle,
        request_id=str(own.pop("request_id", f"request-{handle}")),
        token_ids=pack(prompt),
        emitted_token_ids=own.pop("emitted_token_ids", (pack(emitted),) if emitted else ()),  # type: ignore[arg-type]
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        **own,  # type: ignore[arg-type]
    )


@dataclass
class Received:
    """What one client has got, by (handle, index) and by handle."""

    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    reasons: dict[tuple[int, int], FinishReason] = field(default_factory=dict)
    stop_tokens: dict[tuple[int, int], int] = field(default_factory=dict)
    cached: dict[tuple[int, int], int] = field(default_factory=dict)
    logprobs: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    errors: dict[int, tuple[int, str]] = field(default_factory=dict)
    reasons_of_errors: dict[int, str] = field(default_factory=dict)

    def add(self, batch: pb.OutputBatch) -> None:
        logprobs, prompt_logprobs = output_logprobs(batch), output_prompt_logprobs(batch)
        entries = iter(()) if logprobs is None else logprobs.rows()
        start = 0
        for handle, index, count, reason, stop_token, num_cached in output_rows(batch):
            key = (handle, index)
            assert key not in self.reasons, f"outputs of {key} after its end"
            end = start + count
            self.tokens.setdefault(key, []).extend(batch.token_ids[start:end])
            if logprobs is not None:
                for _ in range(start, end):
                    self.logprobs.setdefault(key, []).extend(next(entries)[1][:1])
            start = end
            if count:
                self.cached[key] = num_cached
            if reason:
                self.reasons[key] = FinishReason(reason)
                self.stop_tokens[key] = stop_token
        assert start == len(batch.token_ids)
        assert next(entries, None) is None
        if prompt_logprobs is not None:
            columns = zip(
                batch.prompt_logprob_handles,
                batch.prompt_logprob_positions,
                prompt_logprobs.rows(),
                strict=True,
            )
            for handle, position, row in columns:
                self.prompt_logprobs.setdefault(handle, []).append((position, row[1][0]))
        for handle, code, message, _, reason_code in output_errors(batch):
            assert handle not in self.errors
            self.errors[handle] = (code, message)
            if reason_code:
                self.reasons_of_errors[handle] = reason_code


class Peer:
    """A worker that is attached, and its draft worker if it has one.

    Outputs wait in `outputs` until they are delivered, so that a test chooses how late they are.
    """

    def __init__(self, worker: FakeWorker, replica: Replica) -> None:
        self.worker = worker
        self.replica = replica
        self.outputs: deque[StepOutput] = deque()
        self.reports: deque[StoreReport] = deque()
        self.drafter: FakeDrafter | None = None
        self.replies: deque[DraftReply] = deque()


class Driver:
    """One engine, any number of workers, any number of clients.

    What names no peer is about the first one.
    """

    def __init__(self, info: WorkerInfo | None = None, **config: object) -> None:
        self.config = SchedulerConfig(**config)  # type: ignore[arg-type]
        self.info = info or worker_info()
        self.engine = Engine(self.config)
        self.peers: list[Peer] = []
        self.plans: list[StepPlan] = []
        self.received: dict[OutputBuffer, Received] = {}
        self.client = self.connect()
        self.now = 1000.0

    @property
    def got(self) -> Received:
        """What the first client has received."""
        return self.received[self.client]

    @property
    def worker(self) -> FakeWorker:
        return self.peers[0].worker

    @property
    def outputs(self) -> deque[StepOutput]:
        return self.peers[0].outputs

    @property
    def speculation(self) -> Speculation:
        return self.peers[0].replica.speculation

    @property
    def drafter(self) -> FakeDrafter | None:
        return self.peers[0].drafter

    @property
    def replies(self) -> deque[DraftReply]:
        return self.peers[0].replies

    def metrics(self) -> list[str]:
        """The lines that Prometheus is given."""
        return exposition(engine_registry(self.engine)).decode().splitlines()

    def connect(self) -> OutputBuffer:
        output_buffer = self.engine.connect()
        self.received[output_buffer] = Received()
        return output_buffer

    def attach(self, info: WorkerInfo | None = None) -> Peer:
        worker = FakeWorker(info or self.info, self.config.max_num_batched_tokens)
        peer = Peer(worker, self.engine.attach(worker.info))
        self.peers.append(peer)
        return peer

    def lose_worker(self, peer: Peer | None = None, *, is_fault: bool = True) -> None:
        """The process ends, with all plans that it was sent."""
        peer = peer or self.peers[0]
        self.peers.remove(peer)
        self.engine.on_worker_lost(peer.replica, is_fault=is_fault)

    def drain(self, peer: Peer, seconds: float = 5.0) -> None:
        """The worker wants to leave; `step` lets it go when it may."""
        self.engine.drain(peer.replica, self.now + seconds)

    def release_leavers(self) -> None:
        for peer in list(self.peers):
            if peer.replica.is_drained(self.now):
                self.lose_worker(peer, is_fault=False)

    def submit(self, handle: int, prompt: list[int], **fields: Any) -> None:
        self.engine.submit(self.client, make_request(handle, prompt, **fields), self.now)

    def attach_drafter(self, drafter: FakeDrafter | None = None, peer: Peer | None = None) -> None:
        peer = peer or self.peers[0]
        drafter = drafter or FakeDrafter(self.info.vocab_size, self.info.max_model_len)
        peer.replica.speculation.attach(drafter.info)
        peer.drafter = drafter

    def lose_drafter(self, peer: Peer | None = None) -> None:
        peer = peer or self.peers[0]
        peer.replica.speculation.detach()
        peer.drafter = None
        peer.replies.clear()

    def ask(self, peer: Peer | None = None) -> bool:
        """Sends a draft worker a request; False if there was none."""
        peer = peer or self.peers[0]
        request = peer.replica.speculation.client.ask(self.now)
        if request is None or peer.drafter is None:
            return False
        peer.replies.append(peer.drafter.draft(request))
        return True

    def reply(self, peer: Peer | None = None) -> bool:
        """Delivers a draft worker's oldest reply; False if no reply waits."""
        peer = peer or self.peers[0]
        if not peer.replies:
            return False
        peer.replica.speculation.client.take(peer.replies.popleft(), self.now)
        return True

    def compile_grammars(self, peer: Peer | None = None) -> None:
        """Sends a worker its new grammars, which are ready at once."""
        peer = peer or self.peers[0]
        if (command := peer.replica.grammars.take_command()) is not None:
            peer.worker.set_grammars(
                command, lambda ready: self.engine.note_grammar(peer.replica, ready)
            )

    def plan(self, peer: Peer | None = None) -> bool:
        """Plans and sends one step, after asking for drafts; False if there was none."""
        self.engine.expire(self.now)
        if not self.peers:
            return False
        peer = peer or self.peers[0]
        self.ask(peer)
        plan = self.engine.plan(peer.replica, self.now)
        if plan is None:
            return False
        self.plans.append(plan)
        if plan.is_announced:
            peer.replica.steps.note_step_begun(plan.epoch, plan.step_id)
        peer.outputs.append(peer.worker.execute(plan))
        return True

    def deliver(self, peer: Peer | None = None) -> bool:
        """Delivers the oldest output of a worker; False if no output waits."""
        peer = peer or self.peers[0]
        if not peer.outputs:
            return False
        peer.replica.steps.commit(peer.outputs.popleft(), self.now)
        return True

    def store(self, peer: Peer | None = None) -> bool:
        """Sends a disk tier what it is to do; False if there was nothing."""
        peer = peer or self.peers[0]
        progress = False
        while (command := peer.replica.worker.blocks.disk.next_command()) is not None:
            peer.worker.store(command, peer.reports.append)
            progress = True
        return progress

    def report(self, peer: Peer | None = None) -> bool:
        """Delivers the oldest report of a disk tier; False if no report waits."""
        peer = peer or self.peers[0]
        if not peer.reports:
            return False
        peer.replica.steps.take_store_report(peer.reports.popleft())
        return True

    def collect(self) -> None:
        for output_buffer, received in self.received.items():
            received.add(output_buffer.take())

    def step(self) -> bool:
        """Plans as far ahead as allowed, then takes one output of each worker; False if nothing
        happened.
        """
        self.engine.expire(self.now)
        self.release_leavers()
        progress = False
        for peer in self.peers:
            progress |= self.store(peer)
            while self.plan(peer):
                progress = True
            progress |= self.store(peer)
        for peer in self.peers:
            progress |= self.report(peer)
            progress |= self.deliver(peer)
            progress |= self.reply(peer)
        self.collect()
        self.now += 0.01
        return progress

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError(f"still busy after {max_steps} steps")
