"""Which stored tensors fill which parameters of a plan, and what a checkpoint lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from taco_worker.kv_scales.scale_names import belongs_to_kv_cache
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Fill, fills
from taco_worker.quant.weight_format import Quantization


class WeightSources:
    """The tensors that a plan needs, by their names in the checkpoint."""

    def __init__(self, plan: ModelPlan, quantization: Quantization | None = None) -> None:
        """Raises ValueError if the checkpoint's format cannot store one of its matrices."""
        self._names = plan.names
        self._quantization = quantization
        self._fills: dict[str, list[Fill]] = {}
        self._modules: set[str] = set()
        self._layouts: list[list[set[str]]] = []  # of each parameter: names of its layouts
        for parameter in plan.parameters.values():
            layouts = []
            for layout in fills(parameter, quantization):
                layouts.append({name for name, fill in layout if not fill.is_optional})
                for name, fill in layout:
                    self._fills.setdefault(name, []).append(fill)
                    if fill.matrix is not None:
                        self._modules.add(fill.matrix.module)
            self._layouts.append(layouts)

    @property
    def fills(self) -> Mapping[str, list[Fill]]:
        """What each tensor fills, by canonical name."""
        return self._fills

    def canonical(self, stored_name: str) -> str | None:
        """The name in `fills` of a stored tensor; None: it is no weight, or not needed."""
        if belongs_to_kv_cache(stored_name):
            return None
        return self._names.canonical(stored_name)

    def is_extra(self, name: str) -> bool:
        """Whether a tensor that fills nothing belongs to the quantization."""
        return self._quantization is not None and self._quantization.is_extra(name)

    def may_be_zero_bias(self, name: str) -> bool:
        """Whether a tensor may be a bias that the model lacks.

        Writers of quantized checkpoints add one of zeros to every quantized module.
        """
        return name.endswith(".bias") and name.removesuffix(".bias") in self._modules

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
