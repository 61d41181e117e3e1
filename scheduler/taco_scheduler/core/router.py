"""Which replica a request goes to: the one that would be done with it first."""

from collections.abc import Sequence as Many

from taco_common.rendezvous import home_of
from taco_proto.licenses import LICENSE_MESSAGE, LicenseState
from taco_proto.registry import DECODE_TOKENS
from taco_proto.steps import WorkerInfo
from taco_scheduler.admission.rejections import RejectedError, RejectionReason
from taco_scheduler.admission.validation import check_fit, length_limit
from taco_scheduler.core.replica import Replica
from taco_scheduler.state.sequence import Request, Sequence

# At most so many waiting sequences are looked at when one replica takes over from another.
MAX_LOOKED_AT = 128


def choose(request: Request, replicas: Many[Replica]) -> Replica | None:
    """The replica with the least estimated work, what the request itself is there included: what
    it finds in the prefix cache costs nothing. So a hot prefix spreads once the replica that has it
    is behind by more than it takes to compute the prefix again. Requests with the same
    `prompt_cache_key` go to one replica, unless that is behind by more than it takes to compute the
    whole prompt.

    A replica that ends the request's sequences before another one would is not considered.

    Returns:
        None if the request has to wait for a worker: there is none, or none of them can go on with
        a request that was accepted.

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
    """Those that may run a request: new ones are for replicas with a license. One that has begun
    goes on with others as well if it has to.

    Raises:
        RejectedError: none of them has a license, and none is about to have one.
    """
    licensed = [replica for replica in able if replica.accepts_requests]
    if request.has_begun:
        return licensed if any(fits(request, replica.info) for replica in licensed) else able
    if able and all(replica.license.state is LicenseState.MISSING for replica in able):
        raise RejectedError(503, LICENSE_MESSAGE, reason=RejectionReason.LICENSE)
    return licensed


def fits(request: Request, info: WorkerInfo) -> bool:
    """Whether a worker can run a request, or go on with it."""
    try:
        check_fit(request, info)
    except RejectedError:
        return False
    # A sequence that is longer than this worker's limit would end where another's goes on.
    limit = length_limit(request, info)
    return not request.accepted or all(len(s.tokens) < limit for s in request.unfinished)


def find_rebalance(idle: Replica, busy: Replica) -> list[Request]:
    """The requests that wait at one replica and would be done sooner at another one."""
    moved: list[Request] = []
    load, ahead = idle.load, busy.load - busy.queued_load
    for sequence in busy.waiting.first(MAX_LOOKED_AT):
        there = sequence.num_queued_tokens
        if ahead + there > load and _may_move(sequence, idle, busy):
            here = idle.num_missing_tokens(sequence)
            if ahead + there > load + here:
                moved.append(sequence.request)
                load += here + DECODE_TOKENS
                continue
        ahead += there + DECODE_TOKENS
    return moved


def _may_move(sequence: Sequence, idle: Replica, busy: Replica) -> bool:
    request = sequence.request
    return (
        not request.is_on_worker
        and request.unfinished[0] is sequence  # the request is looked at once
        and fits(request, idle.info)
        and length_limit(request, idle.info) >= length_limit(request, busy.info)
    )


def _num_tokens(info: WorkerInfo) -> tuple[int, int]:
    return (info.max_model_len, info.num_blocks * info.block_size)
