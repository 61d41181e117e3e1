"""Assigns draft workers to replicas: one draft worker a replica at most.

A draft worker that comes before the workers waits for one. Its state ends with its replica: the
scheduler closes its connection then, and the draft worker connects again.
"""

import logging
from collections.abc import Collection
from typing import Protocol

from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest
from taco_scheduler.admission.validation import InvalidWorkerError, WorkerRejectedError
from taco_scheduler.speculation.speculation import Speculation

logger = logging.getLogger("taco.scheduler")


class DrafterLink(Protocol):
    """The connection to a draft worker, which answers in the order of the requests."""

    @property
    def info(self) -> DrafterInfo: ...

    def send(self, request: DraftRequest) -> None:
        """Queue a request; returns at once."""

    def close(self, reason: str = "") -> None:
        """Send no more requests. `reason` tells a draft worker why it is rejected, if it is."""


class DrafterPool:
    """The attached draft workers, each with the speculation of its replica."""

    def __init__(self) -> None:
        self._assigned: dict[DrafterLink, Speculation | None] = {}

    @property
    def links(self) -> list[DrafterLink]:
        return list(self._assigned)

    def attach(self, link: DrafterLink, replicas: Collection[Speculation]) -> None:
        """Attach a draft worker; the link is closed if it is rejected.

        Raises:
            InvalidWorkerError: its drafts fit none of the workers.
            WorkerRejectedError: every worker has a draft worker. It may connect again later.
        """
        try:
            self._assigned[link] = self._assign(link, replicas)
        except (InvalidWorkerError, WorkerRejectedError):
            link.close()
            raise
        logger.info("draft worker %s attached: %s", link.info.name, link.info.model)

    def remove(self, link: DrafterLink, reason: str) -> None:
        """Remove a lost draft worker: decoding continues without drafts."""
        if link not in self._assigned:
            return
        logger.warning("draft worker %s lost: %s", link.info.name, reason)
        speculation = self._assigned.pop(link)
        if speculation is not None:
            speculation.detach()
        link.close()

    def add_replica(self, replica: Speculation) -> None:
        """Assign a waiting draft worker to a new replica."""
        for link in [link for link, assigned in self._assigned.items() if assigned is None]:
            try:
                self._assigned[link] = self._assign(link, [replica])
            except InvalidWorkerError as error:
                link.close(str(error))
                self.remove(link, str(error))
            except WorkerRejectedError:
                return  # the replica has a draft worker now

    def remove_replica(self, replica: Speculation) -> None:
        """Remove the draft worker of a lost replica."""
        for link in [link for link, assigned in self._assigned.items() if assigned is replica]:
            self.remove(link, "its worker is gone")

    def remove_stalled(self, now: float, step_timeout: float) -> None:
        """Remove draft workers that hang: they send heartbeats, but no reply."""
        for link, speculation in list(self._assigned.items()):
            if speculation is not None:
                deadline = speculation.client.stall_deadline(step_timeout)
                if deadline is not None and now >= deadline:
                    self.remove(link, "its drafts take far longer than any before")

    def ask(self, now: float) -> None:
        """Send the requests that are due. To be called before plans are made: a sequence whose
        drafts are requested does not run until they come.
        """
        for link, speculation in self._assigned.items():
            if speculation is not None and (request := speculation.client.ask(now)):
                link.send(request)

    def take(self, link: DrafterLink, reply: DraftReply, now: float) -> None:
        """Take a draft worker's reply."""
        speculation = self._assigned.get(link)
        if speculation is not None:
            speculation.client.take(reply, now)

    def _assign(self, link: DrafterLink, replicas: Collection[Speculation]) -> Speculation | None:
        """The replica that the draft worker is attached to; None if there is no replica.

        Raises:
            InvalidWorkerError, WorkerRejectedError: see `attach`.
        """
        rejection: Exception | None = None
        for speculation in replicas:
            if speculation.has_draft_worker:
                rejection = rejection or WorkerRejectedError(
                    "every worker has a draft worker already"
                )
                continue
            try:
                speculation.attach(link.info)
            except InvalidWorkerError as error:
                rejection = error
            else:
                return speculation
        if rejection is not None:
            raise rejection
        return None
