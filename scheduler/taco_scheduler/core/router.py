"""Router: assigns each request to the replica that would finish it first."""

from collections.abc import Sequence as Many

from taco_common.rendezvous import home_of
from taco_proto.licenses import LICENSE_MESSAGE, LicenseState
from taco_proto.steps import WorkerInfo
from taco_scheduler.admission.rejections import RejectedError, RejectionReason
from taco_scheduler.admission.validation import check_fit, length_limit
from taco_scheduler.core.replica import Replica
from taco_scheduler.state.sequence import Request


def choose(request: Request, replicas: Many[Replica]) -> Replica | None:
    """The replica with the least estimated work, including the request's own tokens.

    Tokens in a replica's prefix cache cost nothing there. So a hot prefix is computed on a second
    replica once the first one is behind by more tokens than the prefix has. Requests with one
    `prompt_cache_key` go to one replica, unless it is behind by more than the whole prompt.

    A replica whose length limit would end the sequences earlier than another one's is left out.

    Returns:
        None if the request has to wait for a worker: no worker is attached, or no worker can
        continue a request that was accepted before.

    Raises:
        RejectedError: the request is new, and no replica can or may run it.
    """
    able = _allowed(request, [replica for replica in replicas if not replica.is_draining])
    fitting = [replica for replica in able if fits(request, replica.info)]
    if not fitting:
        if able and not request.accepted:
            check_fit(request, max((r.info for r in able), key=_num_tokens))
        return None
    if len(fitting) > 1:
        longest = max(length_limit(request, replica.info) for replica in fitting)
        fitting = [r for r in fitting if length_limit(request, r.info) == longest]
    if len(fitting) == 1:
        return fitting[0]
    sequence = request.unfinished[0]
    costs = {replica: replica.load + replica.num_missing_tokens(sequence) for replica in fitting}
    soonest = min(costs, key=costs.__getitem__)
    if request.prompt_cache_key:
        names = {replica.name: replica for replica in fitting}
        home = names[home_of(request.prompt_cache_key, request.namespace.cache_salt, names)]
        if costs[home] <= costs[soonest] + len(sequence.tokens):
            return home
    return soonest


def _allowed(request: Request, able: Many[Replica]) -> Many[Replica]:
    """The replicas that may run a request.

    A new request needs a replica with a license. A request that has begun may continue on a
    replica without one if it must.

    Raises:
        RejectedError: 503, no replica has a license or expects one.
    """
    licensed = [replica for replica in able if replica.accepts_requests]
    if request.has_begun:
        return licensed if any(fits(request, replica.info) for replica in licensed) else able
    if able and all(replica.license.state is LicenseState.MISSING for replica in able):
        raise RejectedError(503, LICENSE_MESSAGE, reason=RejectionReason.LICENSE)
    return licensed


def fits(request: Request, info: WorkerInfo) -> bool:
    """Whether a worker can run a request, or continue it."""
    try:
        check_fit(request, info)
    except RejectedError:
        return False
    # A sequence longer than this worker's limit would end here and continue elsewhere.
    limit = length_limit(request, info)
    return not request.accepted or all(len(s.tokens) < limit for s in request.unfinished)


def _num_tokens(info: WorkerInfo) -> tuple[int, int]:
    return (info.max_model_len, info.num_blocks * info.block_size)
