"""Writes the tables of docs/models.md from the registry, the recipes and their oracle tests.

    PYTHONPATH=tests python -m tools.models_page

Architectures come from the registry, properties from the plans of the tests' checkpoints, and names
of models from published_models.yaml beside this file. A test holds the page equal.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from support.architectures.variant import Variant
from support.architectures.variants import VARIANTS
from taco_worker.backends.cpu.lowering import lower_plan
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.ops.elementwise import Cap
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.recurrence import Convolve, DeltaRule, StateSpace
from taco_worker.models.registry import BUILT_IN

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
FACTS = Path(__file__).with_name("published_models.yaml")
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_ROUTERS = {
    "softmax": "softmax router",
    "softmax_topk": "softmax router",
    "sigmoid": "sigmoid router",
    "sparsemixer": "sparsemixer router",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What code cannot tell about some architectures; published_models.yaml explains the fields."""

    architectures: Sequence[str]
    models: str
    examples: Sequence[str]
    speculation: str | None = None
    measured: Mapping[str, str] = field(default_factory=dict)

    @property
    def registered(self) -> list[str]:
        return [name for name in self.architectures if name in BUILT_IN]

    @property
    def names(self) -> str:
        return ", ".join(f"`{name}`" for name in self.registered)

    @property
    def variants(self) -> list[Variant]:
        return [one for one in VARIANTS.values() if one.architecture in self.registered]


def read_facts() -> list[Facts]:
    """Those of architectures with a recipe, in the order of names.

    Raises:
        ValueError: published_models.yaml lacks an architecture.
    """
    facts = [Facts(**entry) for entry in yaml.safe_load(FACTS.read_text())]
    known = set(chain.from_iterable(one.architectures for one in facts))
    if missing := sorted(BUILT_IN.keys() - known):
        raise ValueError(f"{FACTS.relative_to(ROOT)} lacks {', '.join(missing)}")
    registered = [one for one in facts if one.registered]
    return sorted(registered, key=lambda one: one.registered[0].lower())


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))
    print(f"written: {PAGE}")


def with_tables(page: str) -> str:
    """The page with its tables as the code is now."""
    facts = read_facts()
    tables = {"architectures": architectures_table(facts), "tests": tests_table(facts)}
    return _TABLE.sub(lambda match: "\n".join((match[1], *tables[match[2]], "", match[3])), page)


def architectures_table(facts: Sequence[Facts]) -> list[str]:
    head = ["| architecture | models | on the hub | properties |", "|---|---|---|---|"]
    return head + [
        f"| {one.names} | {one.models} | {', '.join(f'`{name}`' for name in one.examples)} "
        f"| {', '.join(properties(plans_of(one)))} |"
        for one in facts
    ]


def tests_table(facts: Sequence[Facts]) -> list[str]:
    columns = "checkpoints | oracle | CPU kernels | torch on a CPU | GPU | speculation"
    head = [f"| architecture | {columns} |", "|---" * 7 + "|"]
    return head + [_tests_row(one) for one in facts]


def _tests_row(facts: Facts) -> str:
    oracles = dict.fromkeys(one.layout.oracle for one in facts.variants)
    tested = "tested" if facts.variants else "not tested"
    kernels = tested if all(map(_lowers, plans_of(facts))) else "no"
    figures = facts.measured.get("CPU")
    cells = (
        facts.names,
        str(len(facts.variants)),
        ", ".join(oracles),
        kernels + (f", measured {figures}" if figures else ""),
        tested,
        facts.measured.get("GPU", "not measured"),
        "tested" if facts.speculation else "not tested",
    )
    return f"| {' | '.join(cells)} |"


def plans_of(facts: Facts) -> list[ModelPlan]:
    """The plans of the tests' checkpoints."""
    return [_plan(variant.config) for variant in facts.variants]


def properties(plans: Sequence[ModelPlan]) -> Iterator[str]:
    """What at least one of the plans has."""
    ops = [op for plan in plans for op in (*plan.ops, *plan.logits)]
    attends = [op for op in ops if isinstance(op, Attend)]
    routers = dict.fromkeys(_ROUTERS[op.kind] for op in ops if isinstance(op, Route))
    found = {
        "rotary positions": any(plan.rope_tables for plan in plans),
        "positions on three axes": any(plan.num_rope_axes for plan in plans),
        "ALiBi": any(op.alibi for op in attends),
        "learned positions": any(isinstance(op, Embed) and op.index == "positions" for op in ops),
        "sliding windows": any(op.window for op in attends),
        "block-sparse attention": any(op.block_sparse for op in attends),
        "attention sinks": any(op.sinks for op in attends),
        "log-n scaling": any(op.log_n for op in attends),
        "capped scores": any(op.cap for op in attends),
        "capped logits": any(isinstance(op, Cap) for plan in plans for op in plan.logits),
        "latent attention": any(entry.latent for plan in plans for entry in plan.kv_entries),
        "gated delta rule": any(isinstance(op, DeltaRule) for op in ops),
        "Mamba 2": any(isinstance(op, StateSpace) for op in ops),
        "short convolutions": any(isinstance(op, Convolve) for op in ops),
        f"experts ({', '.join(routers)})": any(isinstance(op, Experts) for op in ops),
    }
    return (name for name, is_there in found.items() if is_there)


def _plan(config: Mapping[str, Any]) -> ModelPlan:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return load_hf_config(Path(folder)).plan


def _lowers(plan: ModelPlan) -> bool:
    types = {name: "bf16" for name, one in plan.parameters.items() if len(one.shape) > 1}
    try:
        lower_plan(plan, types)  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
