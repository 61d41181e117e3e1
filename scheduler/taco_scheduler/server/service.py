"""Drives the engine on an event loop: requests and step outputs in, plans and tokens out.

One *turn* commits the outputs that arrived, plans as far ahead as the engine allows, and wakes the
clients. A turn runs after something arrived or when a deadline passes; nothing polls.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from taco_common.metrics import exposition_in_thread
from taco_proto.config import SchedulerConfig
from taco_proto.drafts import DraftReply
from taco_proto.grammars import GrammarReady
from taco_proto.kv_tiers import StoreReport
from taco_proto.licenses import WorkerLicense
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_proto.steps import StepOutput
from taco_scheduler.admission.rejections import RejectionReason
from taco_scheduler.core.engine import Engine
from taco_scheduler.core.replica import Replica
from taco_scheduler.metrics.exposition import engine_registry
from taco_scheduler.metrics.stats_log import log_stats
from taco_scheduler.server.client_session import ClientSession
from taco_scheduler.server.drafter_links import DraftExecutor, LocalDrafterLink
from taco_scheduler.server.served_model import NO_MODEL, served_model
from taco_scheduler.server.turn_loop import TurnLoop
from taco_scheduler.server.worker_links import LocalWorkerLink, StepExecutor, WorkerLink
from taco_scheduler.speculation.drafter_pool import DrafterLink, DrafterPool
from taco_scheduler.state.in_flight import InvalidOutputError
from taco_scheduler.state.output_buffer import OutputBuffer

logger = logging.getLogger("taco.scheduler")

DRAIN_POLL_SECONDS = 0.02


class StalledError(Exception):
    """A worker sends heartbeats but its step does not end (step timeout)."""


class SchedulerService:
    """The scheduler without its network.

    All methods belong to the event loop that `start` ran on. The service never waits for a client:
    each client's outputs gather in its output buffer.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.engine = Engine(config)
        self.config = config
        self._replicas: dict[WorkerLink, Replica] = {}
        self._drafters = DrafterPool()
        self._outputs: deque[tuple[WorkerLink, StepOutput]] = deque()
        self._sessions: dict[OutputBuffer, ClientSession] = {}
        self._model = NO_MODEL
        self._first_worker = asyncio.Event()
        self._turns = TurnLoop(self._turn, lambda: self._close_sessions("the scheduler failed"))
        self._draining = False
        self._metrics = engine_registry(self.engine)
        self._stats_task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------- life

    async def start(self) -> None:
        self._turns.start()
        if self.config.log_stats:
            self._stats_task = asyncio.create_task(log_stats(self.engine))

    async def stop(self) -> None:
        """Ends the turns, all sessions and the links to workers; safe to call twice."""
        self._turns.stop()
        task, self._stats_task = self._stats_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._close_sessions("the scheduler has stopped")
        links: list[WorkerLink | DrafterLink] = [*self._replicas, *self._drafters.links]
        for link in links:
            link.close()
            if isinstance(link, LocalWorkerLink | LocalDrafterLink):
                await link.join()
        self._replicas.clear()
        self._drafters = DrafterPool()

    async def drain(self, limit: float) -> None:
        """Rejects new requests with 503, and waits at most `limit` seconds until the running
        requests have ended and the disk tier has written its blocks.
        """
        self._draining = True
        self._publish_model()
        try:
            async with asyncio.timeout(limit):
                await self._until(lambda: not self._has_work())
                await self._until(self._flush)
        except TimeoutError:
            if self._has_work():
                logger.warning("%d requests did not end in time", self.engine.num_requests)
            else:
                logger.warning("not all prefixes were written to disk in time")

    @property
    def is_draining(self) -> bool:
        return self._draining

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Polls a condition that only turns can change; returns early if they end."""
        while self._turns.is_running and not condition():  # noqa: ASYNC110  # once, at shutdown
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def _flush(self) -> bool:
        """Tells all workers to write their blocks to disk; True once everything is written."""
        self.engine.flush()
        self._turns.request()
        return self.engine.is_flushed

    def _has_work(self) -> bool:
        sessions = self._sessions.values()
        return self.engine.num_requests > 0 or not all(s.is_drained for s in sessions)

    async def until_ended(self) -> None:
        """Waits until turns have ended: `stop` or a bug ends them."""
        await self._turns.until_ended()

    def not_ready_reason(self) -> str | None:
        """Why a load balancer should send no traffic here; None: the service is ready."""
        if self._draining:
            return "draining"
        return None if self._turns.is_running else "the scheduler loop does not run"

    async def prometheus(self) -> bytes:
        """The engine's metrics in exposition format, read now."""
        return await exposition_in_thread(self._metrics)

    @property
    def model(self) -> ModelInfo:
        """The served model, also after the last worker was lost; unnamed before the first one."""
        return self._model

    # ---------------------------------------------------------------- workers

    @property
    def num_workers(self) -> int:
        return len(self._replicas)

    def attach_local(self, executor: StepExecutor) -> WorkerLink:
        """Attaches a worker of this process and returns the link to it.

        Raises:
            InvalidWorkerError: a field of its description is out of range.
            OtherModelError: the attached workers serve another model.
        """
        link = LocalWorkerLink(
            executor,
            self.on_step_output,
            self.on_store_report,
            self.on_grammar_ready,
            self.on_worker_lost,
        )
        try:
            self.attach(link)
        except Exception:
            link.close()
            raise
        return link

    def attach(self, link: WorkerLink) -> None:
        """Attaches a worker.

        Raises:
            InvalidWorkerError: a field of its description is out of range.
            OtherModelError: the attached workers serve another model.
        """
        # A local worker cannot be replaced, so its steps have no timeout.
        replica = self.engine.attach(link.info, detects_stalls=link.is_remote)
        self._replicas[link] = replica
        logger.info("worker %s attached: %s", replica.name, link.info.model)
        if replica.worker.limits.max_num_batched_tokens < self.config.max_num_batched_tokens:
            logger.info(
                "worker %s computes at most %d tokens in a step, its own --max-num-batched-tokens; "
                "the scheduler would plan %d",
                replica.name,
                replica.worker.limits.max_num_batched_tokens,
                self.config.max_num_batched_tokens,
            )
        if not replica.license.is_valid:
            reason = replica.license.reason
            logger.warning("worker %s takes no new requests yet: %s", replica.name, reason)
        self._drafters.add_replica(replica.speculation)
        self._publish_model()
        self._first_worker.set()
        self._turns.request()

    def on_worker_lost(self, link: WorkerLink, reason: str, *, is_fault: bool = True) -> None:
        """Detaches a worker; its sequences are reassigned to other workers, or wait for one."""
        replica = self._replicas.pop(link, None)
        if replica is None:
            return
        if replica.is_draining and not is_fault:
            logger.info("worker %s detached after its drain", replica.name)
        else:
            logger.warning("worker %s lost: %s", replica.name, reason)
        self.engine.on_worker_lost(replica, is_fault=is_fault)
        self._drafters.remove_replica(replica.speculation)
        link.close()
        self._publish_model()
        if not self._replicas and not link.is_remote:
            self._close_sessions(f"the worker is lost: {reason}")
        self._turns.request()

    def drain_worker(self, link: WorkerLink) -> None:
        """Drains a worker that asked to leave: it gets no new requests, and is detached when its
        requests have ended or `worker_drain_timeout` has passed.
        """
        replica = self._replicas.get(link)
        if replica is None or replica.is_draining:
            return
        limit = self.config.worker_drain_timeout
        logger.info("worker %s drains: its requests have %g s", replica.name, limit)
        self.engine.drain(replica, time.monotonic() + limit)
        self._publish_model()
        self._turns.request()

    def on_license_change(self, link: WorkerLink, license_: WorkerLicense) -> None:
        """Updates whether a worker may take new requests; called with each heartbeat."""
        replica = self._replicas.get(link)
        if replica is None or replica.license == license_:
            return
        self.engine.note_license(replica, license_)
        if license_.is_valid:
            logger.info("worker %s takes new requests", replica.name)
        else:
            logger.warning("worker %s takes no new requests: %s", replica.name, license_.reason)
        self._publish_model()
        self._turns.request()

    def on_step_output(self, link: WorkerLink, output: StepOutput) -> None:
        """Queues an output; the next turn commits it."""
        self._outputs.append((link, output))
        self._turns.request()

    def on_step_announced(self, link: WorkerLink, epoch: int, step_id: int) -> None:
        """Notes that a worker begins a step that may crash it (poison-request detection)."""
        replica = self._replicas.get(link)
        if replica is not None:
            replica.steps.note_step_begun(epoch, step_id)

    def on_store_report(self, link: WorkerLink, report: StoreReport) -> None:
        """Takes a report of a worker's disk tier."""
        replica = self._replicas.get(link)
        if replica is not None:
            replica.steps.take_store_report(report)
            self._turns.request()

    def on_grammar_ready(self, link: WorkerLink, ready: GrammarReady) -> None:
        """Notes that a worker has compiled a grammar, or could not."""
        replica = self._replicas.get(link)
        if replica is not None:
            self.engine.note_grammar(replica, ready)
            self._turns.request()

    # ---------------------------------------------------------- draft workers

    def attach_local_drafter(self, executor: DraftExecutor) -> None:
        """Attaches a draft model of this process; raises what `attach_drafter` does."""
        self.attach_drafter(LocalDrafterLink(executor, self.on_drafts, self.on_drafter_lost))

    def attach_drafter(self, link: DrafterLink) -> None:
        """Attaches a draft worker; raises what `DrafterPool.attach` does."""
        self._drafters.attach(link, [r.speculation for r in self._replicas.values()])
        self._turns.request()

    def on_drafter_lost(self, link: DrafterLink, reason: str) -> None:
        """Detaches a draft worker; decoding continues without its drafts."""
        self._drafters.remove(link, reason)
        self._turns.request()

    def on_drafts(self, link: DrafterLink, reply: DraftReply) -> None:
        """Hands drafts to the replica that asked for them."""
        self._drafters.take(link, reply, time.monotonic())
        self._turns.request()

    # ---------------------------------------------------------------- clients

    def connect(self, name: str) -> ClientSession:
        output_buffer = self.engine.connect()
        session = ClientSession(self, output_buffer, name, self._model)
        self._sessions[output_buffer] = session
        logger.info("client %s connected", name)
        return session

    async def first_model_info(self) -> ModelInfo:
        await self._first_worker.wait()
        return self._model

    def submit(self, output_buffer: OutputBuffer, request: GenerateRequest) -> None:
        if self._draining:
            self.engine.counters.rejections[RejectionReason.DRAINING] += 1
            output_buffer.add_error(request.handle, 503, "the scheduler is shutting down")
        else:
            self.engine.submit(output_buffer, request, time.monotonic())
        self._turns.request()

    def cancel(self, output_buffer: OutputBuffer, handle: int, index: int | None) -> None:
        self.engine.cancel(output_buffer, handle, index)
        self._turns.request()

    def disconnect(self, session: ClientSession) -> None:
        if self._sessions.pop(session.output_buffer, None) is not None:
            self.engine.disconnect(session.output_buffer)
            logger.info("client %s disconnected", session.name)
            self._turns.request()

    # ------------------------------------------------------------------- loop

    def _turn(self) -> float | None:
        """Returns the time at which the next turn is due, if nothing happens before."""
        self._commit_outputs()
        self._detach_stalled_workers()
        self._drafters.remove_stalled(time.monotonic(), self.config.step_timeout)
        self._drafters.ask(time.monotonic())
        self._send_plans()
        self._detach_drained_workers()  # planning may find that nothing is left to do
        for session in list(self._sessions.values()):
            session.notify()
        return self.engine.next_deadline()

    def _commit_outputs(self) -> None:
        while self._outputs:
            link, output = self._outputs.popleft()
            replica = self._replicas.get(link)
            if replica is None:
                continue
            try:
                replica.steps.commit(output, time.monotonic())
            except InvalidOutputError as error:
                link.close(error)
                self.on_worker_lost(link, str(error))

    def _detach_stalled_workers(self) -> None:
        stalled = self.engine.stalled(time.monotonic())
        if not stalled:
            return
        for link, replica in list(self._replicas.items()):
            if replica in stalled:
                error = StalledError("a step takes far longer than any before")
                link.close(error)
                self.on_worker_lost(link, str(error))

    def _detach_drained_workers(self) -> None:
        now = time.monotonic()
        for link, replica in list(self._replicas.items()):
            if replica.is_drained(now):
                self.on_worker_lost(link, "it left", is_fault=False)

    def _send_plans(self) -> None:
        self.engine.expire(time.monotonic())
        for link, replica in self._replicas.items():
            self._send_grammars(link, replica)
            if not replica.can_act:
                continue
            self._send_store_commands(link, replica)  # blocks being written are not evicted
            while replica.can_plan:
                plan = self.engine.plan(replica, time.monotonic())
                # Planning may bring requests of other workers, with their grammars.
                has_new_grammars = self._send_grammars(link, replica)
                if plan is not None:
                    link.send(plan)
                elif not has_new_grammars:
                    break
            self._send_store_commands(link, replica)  # reads for requests that wait for blocks

    def _send_grammars(self, link: WorkerLink, replica: Replica) -> bool:
        command = replica.grammars.take_command()
        if command is not None:
            link.set_grammars(command)
        return command is not None

    def _send_store_commands(self, link: WorkerLink, replica: Replica) -> None:
        while (command := replica.worker.blocks.disk.next_command()) is not None:
            link.store(command)

    def _publish_model(self) -> None:
        """Sends the model info to all clients if it has changed."""
        model = served_model(self._replicas.values())
        model = model or replace(self._model, ready=False, license_problem="")
        model = replace(model, draining=self._draining)
        if model == self._model:
            return
        self._model = model
        for session in self._sessions.values():
            session.notify_model(model)

    def _close_sessions(self, reason: str) -> None:
        for session in list(self._sessions.values()):
            session.close(reason)
