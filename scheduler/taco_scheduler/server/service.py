"""Drives the engine on an event loop: arrivals in, plans to the replica, tokens to clients."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from taco_common.metrics import exposition_in_thread
from taco_proto.config import SchedulerConfig
from taco_proto.drafts import DraftReply
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
from taco_scheduler.server.drafter_links import DraftExecutor, LocalDrafter
from taco_scheduler.server.served_model import NO_MODEL, served_model
from taco_scheduler.server.worker_links import LocalWorkerLink, StepExecutor, WorkerLink
from taco_scheduler.speculation.drafter_pool import DrafterLink, DrafterPool
from taco_scheduler.state.in_flight import InvalidOutputError
from taco_scheduler.state.output_buffer import OutputBuffer

logger = logging.getLogger("taco.scheduler")

DRAIN_POLL_SECONDS = 0.02


class StalledError(Exception):
    """A worker makes no progress, though it says that it is there."""


class SchedulerService:
    """The scheduler without its network: all methods are called on the loop that `start` ran on.

    The loop commits outputs, plans as far ahead as the engine allows, and sleeps until something
    happens. It never waits for a client: each one's news gathers in its output_buffer.
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
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self._draining = False
        self._metrics = engine_registry(self.engine)
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------- life

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name="scheduler loop")]
        if self.config.log_stats:
            self._tasks.append(asyncio.create_task(log_stats(self.engine)))

    async def stop(self) -> None:
        """Ends the loop, all sessions and the links to workers; safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_sessions("the scheduler has stopped")
        links: list[WorkerLink | DrafterLink] = [*self._replicas, *self._drafters.links]
        for link in links:
            link.close()
            if isinstance(link, LocalWorkerLink | LocalDrafter):
                await link.join()
        self._replicas.clear()
        self._drafters = DrafterPool()

    async def drain(self, limit: float) -> None:
        """Tells all clients, refuses new requests with 503, and waits until those that run have
        ended and what belongs on disk is there, or `limit` seconds.
        """
        self._draining = True
        self._announce()
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

    @property
    def _is_running(self) -> bool:
        return bool(self._tasks) and not self._tasks[0].done()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits as long as the loop lives, which alone can bring it about."""
        while self._is_running and not condition():  # noqa: ASYNC110  # only once in a life
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def _flush(self) -> bool:
        """Has all workers write what belongs on disk, those too that have just come; whether that
        is done.
        """
        self.engine.flush()
        self._wake.set()
        return self.engine.is_flushed

    def _has_work(self) -> bool:
        sessions = self._sessions.values()
        return self.engine.num_requests > 0 or not all(s.has_taken_all for s in sessions)

    async def died(self) -> None:
        """Waits until the loop has ended: only `stop` or a bug ends it."""
        await asyncio.wait([self._tasks[0]])

    def why_not_ready(self) -> str | None:
        """Why a load balancer should look elsewhere; None: it should not."""
        if self._draining:
            return "draining"
        return None if self._is_running else "the scheduler loop does not run"

    async def prometheus(self) -> bytes:
        """The engine's metrics in exposition format, as they are when this is called."""
        return await exposition_in_thread(self._metrics)

    @property
    def model(self) -> ModelInfo:
        """What is served, or was when there was a worker; without a name before the first one."""
        return self._model

    # ---------------------------------------------------------------- workers

    @property
    def num_workers(self) -> int:
        return len(self._replicas)

    def attach_local(self, executor: StepExecutor) -> WorkerLink:
        """Attaches a worker of this process; returns the link to it.

        Raises:
            InvalidWorkerError: its description is out of range.
            OtherModelError: it serves another model than the workers that are attached.
        """
        link = LocalWorkerLink(executor, self.deliver, self.deliver_store_report, self.lose)
        try:
            self.attach(link)
        except Exception:
            link.close()
            raise
        return link

    def attach(self, link: WorkerLink) -> None:
        """Takes a worker in.

        Raises:
            InvalidWorkerError: its description is out of range.
            OtherModelError: it serves another model than the workers that are attached.
        """
        # Nobody comes in the place of a local worker, however long its step takes.
        replica = self.engine.attach(link.info, detects_stalls=link.is_remote)
        self._replicas[link] = replica
        logger.info("worker %s attached: %s", replica.name, link.info.model)
        if replica.worker.max_num_batched_tokens < self.config.max_num_batched_tokens:
            logger.info(
                "worker %s computes at most %d tokens in a step, its own --max-num-batched-tokens; "
                "the scheduler would plan %d",
                replica.name,
                replica.worker.max_num_batched_tokens,
                self.config.max_num_batched_tokens,
            )
        if not replica.license.is_valid:
            reason = replica.license.reason
            logger.warning("worker %s takes no new requests yet: %s", replica.name, reason)
        self._drafters.add_replica(replica.speculation)
        self._announce()
        self._first_worker.set()
        self._wake.set()

    def lose(self, link: WorkerLink, reason: str, *, is_fault: bool = True) -> None:
        """The link to a worker is gone: its sequences go on elsewhere, or wait for a worker."""
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
        self._announce()
        if not self._replicas and not link.is_remote:
            self._close_sessions(f"the worker is lost: {reason}")
        self._wake.set()

    def let_leave(self, link: WorkerLink) -> None:
        """A worker wants to leave: it gets no new requests, and goes when it has nothing to do."""
        replica = self._replicas.get(link)
        if replica is None or replica.is_draining:
            return
        limit = self.config.worker_drain_timeout
        logger.info("worker %s drains: its requests have %g s", replica.name, limit)
        self.engine.drain(replica, time.monotonic() + limit)
        self._announce()
        self._wake.set()

    def note_license(self, link: WorkerLink, license_: WorkerLicense) -> None:
        """Whether a worker may take new requests, as it says now and then."""
        replica = self._replicas.get(link)
        if replica is None or replica.license == license_:
            return
        self.engine.note_license(replica, license_)
        if license_.is_valid:
            logger.info("worker %s takes new requests", replica.name)
        else:
            logger.warning("worker %s takes no new requests: %s", replica.name, license_.reason)
        self._announce()
        self._wake.set()

    def deliver(self, link: WorkerLink, output: StepOutput) -> None:
        """Takes an output; it is committed in the loop's next turn."""
        self._outputs.append((link, output))
        self._wake.set()

    def note_begun(self, link: WorkerLink, epoch: int, step_id: int) -> None:
        """A worker begins a step that it had to announce."""
        replica = self._replicas.get(link)
        if replica is not None:
            self.engine.note_step_begun(replica, epoch, step_id)

    def deliver_store_report(self, link: WorkerLink, report: StoreReport) -> None:
        """Takes what a worker's disk tier has done."""
        replica = self._replicas.get(link)
        if replica is not None:
            self.engine.take_store_report(replica, report)
            self._wake.set()

    # ---------------------------------------------------------- draft workers

    def attach_local_drafter(self, executor: DraftExecutor) -> None:
        """Attaches a draft model of this process; raises what `attach_drafter` does."""
        self.attach_drafter(LocalDrafter(executor, self.deliver_drafts, self.lose_drafter))

    def attach_drafter(self, link: DrafterLink) -> None:
        """Takes a draft worker in; raises what `DrafterPool.attach` does."""
        self._drafters.attach(link, [r.speculation for r in self._replicas.values()])
        self._wake.set()

    def lose_drafter(self, link: DrafterLink, reason: str) -> None:
        """The link to a draft worker is gone: decoding goes on without."""
        self._drafters.remove(link, reason)
        self._wake.set()

    def deliver_drafts(self, link: DrafterLink, reply: DraftReply) -> None:
        self._drafters.take(link, reply, time.monotonic())
        self._wake.set()

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
        self._wake.set()

    def cancel(self, output_buffer: OutputBuffer, handle: int, index: int | None) -> None:
        self.engine.cancel(output_buffer, handle, index)
        self._wake.set()

    def disconnect(self, session: ClientSession) -> None:
        if self._sessions.pop(session.output_buffer, None) is not None:
            self.engine.disconnect(session.output_buffer)
            logger.info("client %s gone", session.name)
            self._wake.set()

    # ------------------------------------------------------------------- loop

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                self._commit_outputs()
                self._give_up_stalled()
                self._drafters.ask(time.monotonic())
                self._send_plans()
                self._release_leavers()  # planning may find that there is nothing left to do
                self._notify_clients()
                await self._sleep()
        except Exception:
            logger.exception("the scheduler loop died")
            self._close_sessions("the scheduler failed")
            raise

    def _commit_outputs(self) -> None:
        while self._outputs:
            link, output = self._outputs.popleft()
            replica = self._replicas.get(link)
            if replica is None:
                continue
            try:
                self.engine.commit(replica, output, time.monotonic())
            except InvalidOutputError as error:
                link.close(error)
                self.lose(link, str(error))

    def _give_up_stalled(self) -> None:
        stalled = self.engine.stalled(time.monotonic())
        if not stalled:
            return
        for link, replica in list(self._replicas.items()):
            if replica in stalled:
                error = StalledError("a step takes far longer than any before")
                link.close(error)
                self.lose(link, str(error))

    def _release_leavers(self) -> None:
        now = time.monotonic()
        for link, replica in list(self._replicas.items()):
            if replica.is_drained(now):
                self.lose(link, "it left", is_fault=False)

    def _send_plans(self) -> None:
        self.engine.expire(time.monotonic())
        for link, replica in self._replicas.items():
            if not replica.can_act:
                continue
            self._send_store_commands(link, replica)  # what is written is not evicted
            while replica.can_plan:
                plan = self.engine.plan(replica, time.monotonic())
                if plan is None:
                    break
                link.send(plan)
            self._send_store_commands(link, replica)  # reads for those who wait

    def _send_store_commands(self, link: WorkerLink, replica: Replica) -> None:
        while (command := self.engine.next_store_command(replica)) is not None:
            link.store(command)

    def _notify_clients(self) -> None:
        for session in list(self._sessions.values()):
            session.notify()

    async def _sleep(self) -> None:
        """Until something happens, or the next deadline passes."""
        deadline = self.engine.next_deadline()
        if deadline is not None and deadline < self._wakes_at:
            self._set_timer(deadline)
        await self._wake.wait()

    def _set_timer(self, deadline: float) -> None:
        """Wakes the loop at a time. The deadlines of steps move with every step: a timer that is
        too early by now is left as it is, and wakes the loop in vain, once.
        """
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, deadline - time.monotonic())
        self._wakes_at = deadline
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._wakes_at = None, math.inf
        self._wake.set()

    def _announce(self) -> None:
        """Tells the clients what is served, if that has changed."""
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
