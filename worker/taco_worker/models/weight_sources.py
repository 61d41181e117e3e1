"""Which stored tensors fill which parameters of a plan, and what a checkpoint lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Fill, fills


class WeightSources:
    """The tensors that a plan needs, by their names in the checkpoint."""

    def __init__(self, plan: ModelPlan) -> None:
        self._names = plan.names
        self._fills: dict[str, list[Fill]] = {}
        self._layouts: list[list[set[str]]] = []  # of each parameter: names of its layouts
        for parameter in plan.parameters.values():
            layouts = []
            for layout in fills(parameter):
                layouts.append({name for name, _ in layout})
                for name, fill in layout:
                    self._fills.setdefault(name, []).append(fill)
            self._layouts.append(layouts)

    @property
    def fills(self) -> Mapping[str, list[Fill]]:
        """What each tensor fills, by canonical name."""
        return self._fills

    def canonical(self, stored_name: str) -> str | None:
        """The name in `fills` of a stored tensor; None: it is not needed."""
        return self._names.canonical(stored_name)

    def missing(self, found: Iterable[str]) -> list[str]:
        """The tensors that are not among the canonical names `found`, sorted.

        Of several layouts the one counts that has most of its tensors.
        """
        there = set(found)
        missing: set[str] = set()
        for layouts in self._layouts:
            missing |= min((names - there for names in layouts), key=len)
        return sorted(missing)
