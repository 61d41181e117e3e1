"""Which draft worker drafts for which replica: each is tied to one, and a replica has one at most.

One that comes before the workers waits for them. What it knows of sequences ends with its replica:
its link is closed then, and it dials again.
"""

import logging
from collections.abc import Collection

from taco_proto.drafts import DraftReply
from taco_scheduler.admission.validation import InvalidWorkerError, WorkerRejectedError
from taco_scheduler.core.replica import Replica
from taco_scheduler.server.drafter_links import DrafterLink

logger = logging.getLogger("taco.scheduler")


class DrafterPool:
    """The draft workers that are attached."""

    def __init__(self) -> None:
        self._replicas: dict[DrafterLink, Replica | None] = {}

    @property
    def links(self) -> list[DrafterLink]:
        return list(self._replicas)

    def attach(self, link: DrafterLink, replicas: Collection[Replica]) -> None:
        """Takes a draft worker in; it is closed again if it is refused.

        Raises:
            InvalidWorkerError: it cannot draft for any of the workers that are there.
            WorkerRejectedError: each of those has a draft worker. One that dials on stands by.
        """
        try:
            self._replicas[link] = self._tie(link, replicas)
        except (InvalidWorkerError, WorkerRejectedError):
            link.close()
            raise
        logger.info("draft worker %s attached: %s", link.info.name, link.info.model)

    def lose(self, link: DrafterLink, reason: str) -> None:
        """The link to a draft worker is gone: decoding goes on without."""
        if link not in self._replicas:
            return
        logger.warning("draft worker %s lost: %s", link.info.name, reason)
        replica = self._replicas.pop(link)
        if replica is not None:
            replica.drafts.detach()
        link.close()

    def add_replica(self, replica: Replica) -> None:
        """A worker has come: one of those that wait for one may draft for it."""
        for link in [link for link, tied in self._replicas.items() if tied is None]:
            try:
                self._replicas[link] = self._tie(link, [replica])
            except InvalidWorkerError as error:
                link.close(str(error))
                self.lose(link, str(error))
            except WorkerRejectedError:
                return  # the replica has got one

    def remove_replica(self, replica: Replica) -> None:
        """A worker is lost."""
        for link in [link for link, tied in self._replicas.items() if tied is replica]:
            self.lose(link, "its worker is gone")

    def ask(self, now: float) -> None:
        """Before plans are made: who is asked for does not run until the drafts are there."""
        for link, replica in self._replicas.items():
            if replica is not None and (request := replica.drafts.request(now)):
                link.send(request)

    def take(self, link: DrafterLink, reply: DraftReply, now: float) -> None:
        replica = self._replicas.get(link)
        if replica is not None:
            replica.drafts.take(reply, now)

    def _tie(self, link: DrafterLink, replicas: Collection[Replica]) -> Replica | None:
        """Raises InvalidWorkerError, WorkerRejectedError."""
        refusal: Exception | None = None
        for replica in replicas:
            if replica.drafts.is_taken:
                refusal = refusal or WorkerRejectedError("every worker has a draft worker already")
                continue
            try:
                replica.drafts.attach(link.info)
            except InvalidWorkerError as error:
                refusal = error
            else:
                return replica
        if refusal is not None:
            raise refusal
        return None
