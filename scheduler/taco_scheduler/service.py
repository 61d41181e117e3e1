"""Drives the engine on an event loop: arrivals in, plans to the replica, tokens to clients."""

import asyncio
import logging
import time
from collections import deque

from taco_proto.config import SchedulerConfig
from taco_proto.drafts import DraftReply
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_proto.steps import StepOutput, WorkerInfo
from taco_scheduler.admission import InvalidWorkerError
from taco_scheduler.drafter_links import DrafterLink, DraftExecutor, LocalDrafter
from taco_scheduler.engine import Engine
from taco_scheduler.in_flight import InvalidOutputError
from taco_scheduler.metrics import Metrics
from taco_scheduler.outbox import Outbox
from taco_scheduler.replica import LocalReplica, Replica, StepExecutor
from taco_scheduler.session import ClientSession
from taco_scheduler.stats_log import log_stats

logger = logging.getLogger("taco.scheduler")

DRAIN_POLL_SECONDS = 0.02

NO_MODEL = ModelInfo(
    model="",
    max_model_len=0,
    vocab_size=0,
    eos_token_ids=(),
    block_size=0,
    num_blocks=0,
    max_logprobs=0,
    ready=False,
)


class WorkerRefusedError(Exception):
    """Another worker is attached already."""


class SchedulerService:
    """The scheduler without its network: all methods are called on the loop that `start` ran on.

    The loop commits outputs, plans as far ahead as the engine allows, and sleeps until something
    happens. It never waits for a client: each one's news gathers in its outbox.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.engine = Engine(config)
        self._config = config
        self._replica: Replica | None = None
        self._drafter: DrafterLink | None = None
        self._outputs: deque[tuple[Replica, StepOutput]] = deque()
        self._sessions: dict[Outbox, ClientSession] = {}
        self._model = NO_MODEL
        self._first_worker = asyncio.Event()
        self._wake = asyncio.Event()
        self._draining = False
        self._metrics = Metrics(self.engine)
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------- life

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name="scheduler loop")]
        if self._config.log_stats:
            self._tasks.append(asyncio.create_task(log_stats(self.engine)))

    async def stop(self) -> None:
        """Ends the loop, all sessions and the link to the worker; safe to call twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_sessions("the scheduler has stopped")
        replica, self._replica = self._replica, None
        drafter, self._drafter = self._drafter, None
        for link in (replica, drafter):
            if link is not None:
                link.close()
            if isinstance(link, LocalReplica | LocalDrafter):
                await link.join()

    async def drain(self, limit: float) -> None:
        """Refuses new requests with 503 and waits until those that run have ended, or `limit`
        seconds.
        """
        self._draining = True
        try:
            async with asyncio.timeout(limit):
                while self._has_work():  # noqa: ASYNC110  # many things end it, and only once
                    await asyncio.sleep(DRAIN_POLL_SECONDS)
        except TimeoutError:
            logger.warning("%d requests did not end in time", self.engine.num_requests)

    def _has_work(self) -> bool:
        sessions = self._sessions.values()
        return self.engine.num_requests > 0 or not all(s.has_taken_all for s in sessions)

    async def died(self) -> None:
        """Waits until the loop has ended: only `stop` or a bug ends it."""
        await asyncio.wait([self._tasks[0]])

    def prometheus(self) -> bytes:
        """The engine's metrics in exposition format."""
        return self._metrics.exposition()

    # ---------------------------------------------------------------- workers

    @property
    def num_workers(self) -> int:
        return 0 if self._replica is None else 1

    def attach_local(self, executor: StepExecutor) -> None:
        """Attaches a worker of this process.

        Raises:
            InvalidWorkerError: its description is out of range.
            WorkerRefusedError: another worker is attached.
        """
        replica = LocalReplica(executor, self.deliver)
        try:
            self.attach(replica)
        except Exception:
            replica.close()
            raise

    def attach(self, replica: Replica) -> None:
        """Takes a worker in.

        Raises:
            InvalidWorkerError: its description is out of range.
            WorkerRefusedError: another worker is attached. One that dials on stands by.
        """
        if self._replica is not None:
            raise WorkerRefusedError(f"worker {self._replica.info.name} is attached already")
        self.engine.attach(replica.info)
        self._replica = replica
        logger.info("worker %s attached: %s", replica.info.name, replica.info.model)
        self._announce(_model_info(replica.info))
        self._first_worker.set()
        self._check_drafter()
        self._wake.set()

    def lose(self, replica: Replica, reason: str, *, is_fault: bool = True) -> None:
        """The link to a worker is gone: its sequences wait for another one."""
        if replica is not self._replica:
            return
        logger.warning("worker %s lost: %s", replica.info.name, reason)
        self._replica = None
        self.engine.detach(is_fault=is_fault)
        replica.close()
        self._announce(_model_info(replica.info, ready=False))
        self._wake.set()

    def deliver(self, replica: Replica, output: StepOutput) -> None:
        """Takes an output; it is committed in the loop's next turn."""
        self._outputs.append((replica, output))
        self._wake.set()

    # ---------------------------------------------------------- draft workers

    def attach_local_drafter(self, executor: DraftExecutor) -> None:
        """Attaches a draft model of this process.

        Raises:
            InvalidWorkerError: it cannot draft for the worker that is attached.
            WorkerRefusedError: another draft worker is attached.
        """
        self.attach_drafter(LocalDrafter(executor, self.deliver_drafts, self.lose_drafter))

    def attach_drafter(self, link: DrafterLink) -> None:
        """Takes a draft worker in; it is closed again if it is refused.

        Raises:
            InvalidWorkerError: it cannot draft for the worker that is attached.
            WorkerRefusedError: another draft worker is attached. One that dials on stands by.
        """
        if self._drafter is not None:
            link.close()
            name = self._drafter.info.name
            raise WorkerRefusedError(f"draft worker {name} is attached already")
        self.engine.drafts.attach(link.info)
        try:
            self.engine.drafts.check()
        except InvalidWorkerError:
            self.engine.drafts.detach()
            link.close()
            raise
        self._drafter = link
        logger.info("draft worker %s attached: %s", link.info.name, link.info.model)
        self._wake.set()

    def lose_drafter(self, link: DrafterLink, reason: str) -> None:
        """The link to a draft worker is gone: decoding goes on without."""
        if link is not self._drafter:
            return
        logger.warning("draft worker %s lost: %s", link.info.name, reason)
        self._drafter = None
        self.engine.drafts.detach()
        link.close()
        self._wake.set()

    def deliver_drafts(self, link: DrafterLink, reply: DraftReply) -> None:
        if link is self._drafter:
            self.engine.drafts.take(reply, time.time())
            self._wake.set()

    def _check_drafter(self) -> None:
        """A worker came after the draft worker: do they fit?"""
        link = self._drafter
        if link is None:
            return
        try:
            self.engine.drafts.check()
        except InvalidWorkerError as error:
            link.close(str(error))
            self.lose_drafter(link, str(error))

    # ---------------------------------------------------------------- clients

    def connect(self, name: str) -> ClientSession:
        outbox = self.engine.connect()
        session = ClientSession(self, outbox, name, self._model)
        self._sessions[outbox] = session
        logger.info("client %s connected", name)
        return session

    async def first_model_info(self) -> ModelInfo:
        await self._first_worker.wait()
        return self._model

    def submit(self, outbox: Outbox, request: GenerateRequest) -> None:
        if self._draining:
            outbox.add_error(request.handle, 503, "the scheduler is shutting down")
        else:
            self.engine.submit(outbox, request, time.time())
        self._wake.set()

    def cancel(self, outbox: Outbox, handle: int, index: int | None) -> None:
        self.engine.cancel(outbox, handle, index)
        self._wake.set()

    def disconnect(self, session: ClientSession) -> None:
        if self._sessions.pop(session.outbox, None) is not None:
            self.engine.disconnect(session.outbox)
            logger.info("client %s gone", session.name)
            self._wake.set()

    # ------------------------------------------------------------------- loop

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                self._commit_outputs()
                self._ask_for_drafts()
                self._send_plans()
                self._notify_clients()
                await self._sleep()
        except Exception:
            logger.exception("the scheduler loop died")
            self._close_sessions("the scheduler failed")
            raise

    def _commit_outputs(self) -> None:
        while self._outputs:
            replica, output = self._outputs.popleft()
            if replica is not self._replica:
                continue
            try:
                self.engine.commit(output, time.time())
            except InvalidOutputError as error:
                replica.close(f"invalid output: {error}")
                self.lose(replica, str(error))

    def _ask_for_drafts(self) -> None:
        """Before plans are made: who is asked for does not run until the drafts are there."""
        if self._drafter is not None and (request := self.engine.drafts.request(time.time())):
            self._drafter.send(request)

    def _send_plans(self) -> None:
        while (plan := self.engine.plan(time.time())) is not None:
            assert self._replica is not None
            self._replica.send(plan)

    def _notify_clients(self) -> None:
        for session in list(self._sessions.values()):
            session.notify()

    async def _sleep(self) -> None:
        """Until something happens, or the next deadline passes."""
        deadline = self.engine.next_deadline()
        if deadline is None:
            await self._wake.wait()
            return
        delay = max(0.0, deadline - time.time())
        timer = asyncio.get_running_loop().call_later(delay, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _announce(self, model: ModelInfo) -> None:
        self._model = model
        for session in self._sessions.values():
            session.notify_model(model)

    def _close_sessions(self, reason: str) -> None:
        for session in list(self._sessions.values()):
            session.close(reason)


def _model_info(info: WorkerInfo, *, ready: bool = True) -> ModelInfo:
    return ModelInfo(
        model=info.model,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_logprobs=info.max_logprobs,
        default_sampling=info.default_sampling,
        ready=ready,
    )
