"""Adds buffers over the ranks, by the plan that the settings name or the cost model chooses."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from taco_train.collective.communicator import Communicator
from taco_train.collective.levels import FLAT, HOSTS, RACKS, make_layout
from taco_train.collective.wire import BFLOAT16, DENSE, FLOAT16, TopK, Wire
from taco_train.lightcc.cost_cache import CostCache
from taco_train.lightcc.cost_model import Buffer, Costs, Format, Plan, allowed_plans, choose
from taco_train.lightcc.device.groups import LevelGroups
from taco_train.lightcc.device.level_reducer import LevelReducer
from taco_train.lightcc.fusion import fusion_bytes
from taco_train.lightcc.measure import measure
from taco_train.lightcc.negotiation.buckets import ReadyGradient
from taco_train.lightcc.negotiation.requests import UNNAMED
from taco_train.lightcc.settings import Settings
from taco_train.lightcc.unsent import Bucket, Unsent

logger = logging.getLogger(__name__)
# Messages of such buffers take longer than their bytes, on any link: two levels have the fewest.
_SMALL_BYTES = 64 << 10
_BATCH_SECONDS = 3e-4  # of a bucket on the host: negotiation, threads, and copies' fixed part
_FIRST_RATIO = 0.25  # of a warm-up, as in arXiv 1712.01887
_WIRES = {Format.DENSE: DENSE, Format.FLOAT16: FLOAT16, Format.BFLOAT16: BFLOAT16}
_MAX_REMEMBERED = 4096  # buffers: names may be new in each step


@dataclass(frozen=True, slots=True)
class _BucketPlan:
    """How a buffer is reduced: the same in each step.

    Attributes:
        bucket: the tensors in it.
        keeps: TopK, which keeps what it does not send.
        can_wait: the buffer may hold what TopK did not send of the tensors before.
    """

    bucket: Bucket
    wire: Wire
    keeps: bool
    can_wait: bool


@dataclass(slots=True)
class _State:
    """Of one communicator.

    Attributes:
        domains: groups of ranks that share memory.
        settings: the user's; levels are set where ranks share hosts or hosts share racks.
        depth: of sums in levels: hosts, and racks where there are several.
        unsent: what TopK has not sent.
        costs: None until a decision needs them.
        plans: by buffer and whether it may be sent by TopK.
        bucket_plans: by bytes, whether it is a float32 sum, whether process groups reduce it, and
            names and sizes of the tensors.
        logged: the last plan by size class: powers of two.
        devices: reducers of tensors that stay where they are.
    """

    domains: tuple[tuple[int, ...], ...]
    settings: Settings
    depth: int
    unsent: Unsent
    costs: Costs | None = None
    plans: dict[tuple[Buffer, bool], Plan] = field(default_factory=dict)
    bucket_plans: dict[tuple[int, bool, bool, tuple[str, ...], tuple[int, ...]], _BucketPlan] = (
        field(default_factory=dict)
    )
    logged: dict[tuple[int, bool, bool], Plan] = field(default_factory=dict)
    devices: dict[torch.device, LevelReducer] = field(default_factory=dict)

    @property
    def num_hosts(self) -> int:
        return len(self.domains)


class BucketReducer:
    """The reducer of a `CollectiveRunner`.

    All ranks decide alike: settings and measured costs are equal on all of them.

    Args:
        plans_fusion: `fusion_bytes` will be asked, so costs are measured in any case.
        group_devices: types of devices whose tensors torch's process groups reduce: NCCL, and gloo
            on the CPU. Costs are not measured there: what the settings leave open is two levels,
            without compression.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        plans_fusion: bool = False,
        group_devices: Collection[str] = ("cuda",),
    ) -> None:
        self._settings = settings
        self._plans_fusion = plans_fusion
        self._group_devices = group_devices
        self._largest: _State | None = None  # of the communicator with the most ranks
        self._states: weakref.WeakKeyDictionary[Communicator, _State] = weakref.WeakKeyDictionary()

    def all_reduce(
        self,
        communicator: Communicator,
        buffer: Tensor,
        op: str,
        names: Sequence[str],
        sizes: Sequence[int],
    ) -> None:
        """See `collective_runner.Reducer`. Tensors without a name are never sent by TopK."""
        self.bind(communicator, buffer, op, names, sizes)()

    def bind(
        self,
        communicator: Communicator,
        buffer: Tensor,
        op: str,
        names: Sequence[str],
        sizes: Sequence[int],
    ) -> Callable[[], None]:
        """Decide how to reduce a buffer.

        Returns:
            What does as `all_reduce`, in every step in which the buffer holds these tensors.
        """
        state = self._state(communicator)
        is_float32_sum = buffer.dtype == torch.float32 and op in ("sum", "average")
        in_groups = self.uses_groups(buffer.device)
        key = buffer.nbytes, is_float32_sum, in_groups, tuple(names), tuple(sizes)
        chosen = state.bucket_plans.get(key)
        if chosen is None:
            if len(state.bucket_plans) == _MAX_REMEMBERED:
                state.bucket_plans.clear()
            chosen = state.bucket_plans[key] = self._bucket_plan(communicator, state, *key)
        run: Callable[[], None]
        if in_groups:
            two_level = chosen.bucket.depth != FLAT
            level_reducer = self._level_reducer(communicator, state, buffer.device)
            run = partial(
                level_reducer.all_reduce, buffer, op, wire=chosen.wire, two_level=two_level
            )
        elif buffer.is_contiguous():
            run = communicator.bind_all_reduce(
                buffer, op, wire=chosen.wire, depth=chosen.bucket.depth
            )
        else:
            run = partial(
                communicator.all_reduce, buffer, op, wire=chosen.wire, depth=chosen.bucket.depth
            )
        if not chosen.can_wait:
            return run

        def prepare_and_run() -> None:
            state.unsent.prepare(chosen.bucket, buffer, keeps=chosen.keeps)
            run()

        return prepare_and_run

    def uses_groups(self, device: torch.device) -> bool:
        """Whether buffers on a device stay there; others must be on the CPU."""
        return device.type in self._group_devices

    def close(self) -> None:
        """Ends the process groups, also where a lost rank keeps a collective from its end."""
        for state in self._states.values():
            for reducer in state.devices.values():
                reducer.close()
            state.devices.clear()

    def costs(self, communicator: Communicator) -> Costs:
        """The costs of a communicator, which its ranks measure together on the first call."""
        state = self._state(communicator)
        if state.costs is None:
            state.costs = measure(communicator, CostCache.of(os.environ))
            known = None if self._largest is None else self._largest.costs
            if known is None or known.size < state.costs.size:
                self._largest = state
            if communicator.rank == 0:
                logger.info("measured: %s", state.costs)
        return state.costs

    def fusion_bytes(self, gradients: Sequence[ReadyGradient]) -> int | None:
        """The bucket size with which these gradients are reduced first; None: costs are unknown."""
        if self._largest is None or self._largest.costs is None:
            return None
        return fusion_bytes(
            gradients,
            self._largest.costs,
            self._largest.settings,
            bucket_seconds=_BATCH_SECONDS,
        )

    def state_dict(self, communicator: Communicator) -> dict[str, Any]:
        """What TopK has not sent on this rank, which saves its own; empty without TopK."""
        state = self._state(communicator)
        if state.unsent.is_empty:
            return {}
        return {
            "rank": communicator.rank,
            "size": communicator.size,
            "domains": state.domains,
            **state.unsent.state_dict(),
        }

    def load_state_dict(self, communicator: Communicator, saved: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` gave.

        A state of another number of ranks is ignored. Of another rank's, only the steps count: all
        ranks must be at the same ratio, also where rank 0 alone has a state, which it sends to all.
        """
        if not saved or saved["size"] != communicator.size:
            return
        state = self._state(communicator)
        if saved["rank"] == communicator.rank:
            has_same_shards = saved["domains"] == state.domains
            state.unsent.load_state_dict(saved, has_same_shards=has_same_shards)
        else:
            state.unsent.count_from(saved)

    def _state(self, communicator: Communicator) -> _State:
        if (state := self._states.get(communicator)) is None:
            state = self._new_state(communicator)
            self._states[communicator] = state
        return state

    def _new_state(self, communicator: Communicator) -> _State:
        hosts, levels = communicator.placement.hosts, communicator.levels
        domains = make_layout(communicator.rank, hosts, levels).domains
        has_racks = levels.num_racks(hosts) > 1
        settings = self._settings
        if settings.two_level is None and (has_racks or max(map(len, domains)) > 1):
            # They send fewer bytes than a ring, and do not depend on where in a buffer a value is:
            # every run has the same bits, whatever is measured.
            settings = replace(settings, two_level=True)
        return _State(
            domains=domains,
            settings=settings,
            depth=RACKS if has_racks else HOSTS,
            unsent=Unsent(communicator.residuals),
        )

    def _bucket_plan(
        self,
        communicator: Communicator,
        state: _State,
        num_bytes: int,
        is_float32_sum: bool,
        in_groups: bool,
        names: tuple[str, ...],
        sizes: tuple[int, ...],
    ) -> _BucketPlan:
        can_wait = is_float32_sum and not any(name.startswith(UNNAMED) for name in names)
        size = Buffer(num_bytes, is_float32_sum)
        if in_groups:
            plan = allowed_plans(size, _usable(state.settings, can_wait))[0]
        else:
            if self._plans_fusion and state.num_hosts > 1 and num_bytes > _SMALL_BYTES:
                self.costs(communicator)
            plan = self._plan(communicator, state, size, can_wait)
        bucket = Bucket(state.depth if plan.two_level else FLAT, names, sizes)
        keeps = plan.format is Format.TOP_K
        return _BucketPlan(
            bucket, self._wire(plan, bucket), keeps, can_wait and state.num_hosts > 1
        )

    def _level_reducer(
        self, communicator: Communicator, state: _State, device: torch.device
    ) -> LevelReducer:
        if device not in state.devices:
            groups = LevelGroups(communicator, device)
            state.devices[device] = LevelReducer(groups, communicator.residuals)
        return state.devices[device]

    def _wire(self, plan: Plan, bucket: Bucket) -> Wire:
        if plan.format is not Format.TOP_K:
            return _WIRES[plan.format]
        settings = self._settings
        return TopK(
            bucket.key,
            ratio=settings.top_k_ratio,
            values="float16" if settings.top_k_fp16 else "float32",
            momentum=settings.top_k_momentum,
            warmup_steps=settings.top_k_warmup_steps,
            first_ratio=max(settings.top_k_ratio, _FIRST_RATIO),
        )

    def _plan(
        self, communicator: Communicator, state: _State, buffer: Buffer, can_wait: bool
    ) -> Plan:
        if (plan := state.plans.get((buffer, can_wait))) is None:
            plan = self._decide(communicator, state, buffer, can_wait)
            state.plans[buffer, can_wait] = plan
        return plan

    def _decide(
        self, communicator: Communicator, state: _State, buffer: Buffer, can_wait: bool
    ) -> Plan:
        settings = _usable(state.settings, can_wait)
        plans = allowed_plans(buffer, settings)
        if len(plans) == 1 or state.num_hosts == 1 or buffer.num_bytes <= _SMALL_BYTES:
            return plans[0]
        choice = choose(buffer, self.costs(communicator), settings)
        size_class = buffer.num_bytes.bit_length(), buffer.is_float32_sum, can_wait
        if communicator.rank == 0 and state.logged.get(size_class) != choice.plan:
            state.logged[size_class] = choice.plan
            kind = "float32 sum" if buffer.is_float32_sum else "other values"
            logger.info("%d bytes, %s: %s", buffer.num_bytes, kind, choice)
        return choice.plan


def _usable(settings: Settings, can_wait: bool) -> Settings:
    """The settings for a buffer; without TopK where its values cannot wait for a later step."""
    return settings if can_wait else replace(settings, top_k=False)
