"""Which stored tensors fill which parameters of a plan, and what a checkpoint lacks."""

from __future__ import annotations

from collections import Counter
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

        Of several layouts a whole one counts, or the one with the most tensors; of equal ones, that
        which has most tensors of other parameters.
        """
        there = set(found)
        num_found = Counter[int]()
        for layouts in self._layouts:
            if len(layouts) > 1:
                num_found.update({i: len(names & there) for i, names in enumerate(layouts)})
        missing: set[str] = set()
        for layouts in self._layouts:
            ranks = [
                (names <= there, len(names & there), num_found[i])
                for i, names in enumerate(layouts)
            ]
            missing |= layouts[ranks.index(max(ranks))] - there
        return sorted(missing)
