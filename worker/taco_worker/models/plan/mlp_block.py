"""Feed-forward blocks: plain, gated, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taco_kernels.router import GroupScore, RouterKind
from taco_worker.models.plan.builder import Module, PlanBuilder
from taco_worker.models.plan.ops.activation import ALPHA, Activation, ActivationKind
from taco_worker.models.plan.ops.elementwise import Add, Gate, Xielu
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.views import Flatten, Softplus


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """down(act(up(x))), or down(act(gate(x)) * up(x)).

    Attributes:
        size: columns between the two products.
        up: the modules of up; of gate, then up, if the MLP is gated.
        limit: of clipped activations.
        xielu: module with the numbers of `Xielu`, which replaces the activation of an MLP without a
            gate; None: the activation is `activation`.
    """

    size: int
    activation: ActivationKind
    up: Sequence[Module]
    down: Module
    is_gated: bool
    up_bias: bool = False
    down_bias: bool = False
    limit: float | None = None
    xielu: str | None = None


def mlp(b: PlanBuilder, x: Slice, spec: MlpSpec, *, name: str = "mlp") -> Slice:
    """An MLP of `x`; its output is as wide as the stream."""
    width = 2 * spec.size if spec.is_gated else spec.size
    up_name = "gate_up_proj" if spec.is_gated else "up_proj"
    up = b.linear(x, f"{name}.{up_name}", spec.up, bias=spec.up_bias, out=b.buffer("up", width))
    if spec.xielu is not None:
        b.add(Xielu(up, _xielu_numbers(b, f"{name}.xielu", spec.xielu)))
        inner = up
    else:
        inner = b.buffer("inner", spec.size)
        b.add(Activation(up, inner, spec.activation, spec.is_gated, limit=spec.limit))
    out = b.buffer("mlp_out", b.stream.size)
    return b.linear(
        inner, f"{name}.down_proj", [spec.down], bias=spec.down_bias, out=out, shard_unit=1
    )


def gated_mlp(
    prefix: str,
    size: int,
    hidden_size: int,
    activation: ActivationKind = "silu",
    *,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    bias: bool = False,
) -> MlpSpec:
    """A gated MLP with one module each for gate, up and down."""
    gate, up, down = names
    modules = [Module(f"{prefix}.{gate}", size), Module(f"{prefix}.{up}", size)]
    down_module = Module(f"{prefix}.{down}", hidden_size)
    return MlpSpec(size, activation, modules, down_module, True, bias, bias)


def plain_mlp(
    up: Module, down: Module, activation: ActivationKind, *, bias: bool = True
) -> MlpSpec:
    """An MLP without a gate."""
    return MlpSpec(up.size, activation, [up], down, False, bias, bias)


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture of experts; `Route` and `Experts` explain the options with their names.

    Attributes:
        size: intermediate size of an expert.
        router: modules of the router's linear layer; a checkpoint has one of them.
        gate_up, down: tensors of the experts; alternatives are other layouts of a checkpoint.
        gate_up_bias, down_bias: likewise.
        correction_bias: stored tensor of `Route.bias`, or several: a checkpoint has one of them.
            A `Source` is one that needs views.
        shared: an MLP that every token passes.
        shared_gate: module of one column whose sigmoid is a factor on the shared MLP's output.
    """

    num_experts: int
    top_k: int
    size: int
    activation: ActivationKind
    kind: RouterKind
    renormalize: bool
    router: Sequence[str]
    gate_up: Sequence[Sequence[Source]]
    down: Sequence[Sequence[Source]]
    router_bias: bool = False
    gate_up_bias: Sequence[Sequence[Source]] | None = None
    down_bias: Sequence[Sequence[Source]] | None = None
    correction_bias: str | Sequence[str | Source] | None = None
    scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1
    group_score: GroupScore = "max"
    jitter: float = 0.0
    alpha: float = ALPHA
    limit: float | None = None
    shared: MlpSpec | None = None
    shared_gate: str | None = None


def moe(b: PlanBuilder, x: Slice, spec: MoeSpec) -> Slice:
    """A mixture of experts of `x`; its output is as wide as the stream."""
    count, top_k, size, width = spec.num_experts, spec.top_k, spec.size, b.stream.size
    logits = _router_logits(b, x, spec)
    ids, weights = b.buffer("expert_ids", top_k), b.buffer("expert_weights", top_k)
    bias = None
    if spec.correction_bias is not None:
        given = spec.correction_bias
        names = [given] if isinstance(given, str) else given
        first, *others = [
            [name if isinstance(name, Source) else Source(name, 0, count)] for name in names
        ]
        bias = b.parameter("moe.correction_bias", (count,), first, others=others, initial=0.0)
    b.add(
        Route(
            logits,
            ids,
            weights,
            spec.kind,
            top_k,
            spec.renormalize,
            scale=spec.scale,
            num_groups=spec.num_groups,
            top_groups=spec.top_groups,
            group_score=spec.group_score,
            bias=bias,
            jitter=spec.jitter,
        )
    )
    out = b.buffer("moe_out", width)
    b.add(
        Experts(
            x,
            ids,
            weights,
            out,
            count,
            size,
            b.experts("moe.gate_up", (count, 2 * size, x.size), spec.gate_up),
            b.experts("moe.down", (count, width, size), spec.down),
            spec.activation,
            gate_up_bias=_expert_bias(b, "moe.gate_up_bias", (count, 2 * size), spec.gate_up_bias),
            down_bias=_expert_bias(b, "moe.down_bias", (count, width), spec.down_bias),
            alpha=spec.alpha,
            limit=spec.limit,
        )
    )
    if spec.shared is not None:
        shared = mlp(b, x, spec.shared, name="shared_mlp")
        if spec.shared_gate is not None:
            module = [Module(spec.shared_gate, 1)]
            b.add(Gate(shared, b.linear(x, "shared_gate", module, out=b.buffer("gate", 1))))
        b.add(Add(out, shared))
    return out


def expert_layouts(
    experts: str,
    size: int,
    hidden_size: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    *,
    stacked: str = "model.layers.{layer}.mlp.experts",
) -> tuple[list[list[Source]], list[list[Source]]]:
    """Layouts of gate_up and of down: each expert's modules gate, up and down, or 3-D tensors.

    Args:
        experts: module of the experts one by one.
        names: of an expert's modules.
        stacked: module of the 3-D tensors that transformers 5 saves.
    """
    gate, up, down = (f"{experts}.{{expert}}.{name}.weight" for name in names)
    gate_up = [Source(gate, 0, size), Source(up, size, size)]
    return (
        [gate_up, [Source(f"{stacked}.gate_up_proj", 0, 2 * size)]],
        [[Source(down, 0, hidden_size)], [Source(f"{stacked}.down_proj", 0, hidden_size)]],
    )


def _xielu_numbers(b: PlanBuilder, name: str, module: str) -> str:
    sources = [
        Source(f"{module}.alpha_p", 0, 1, (Softplus(),)),
        Source(f"{module}.alpha_n", 1, 1, (Softplus(),)),
        Source(f"{module}.beta", 2, 1, (Flatten(()),)),
        Source(f"{module}.eps", 3, 1, (Flatten(()),)),
    ]
    return b.parameter(name, (4,), sources, initial=0.5)


def _router_logits(b: PlanBuilder, x: Slice, spec: MoeSpec) -> Slice:
    count = spec.num_experts

    def declare(kind: str, shape: tuple[int, ...], initial: float | None = None) -> str:
        first, *others = [[Source(f"{module}.{kind}", 0, count)] for module in spec.router]
        return b.parameter(f"moe.router.{kind}", shape, first, others=others, initial=initial)

    weight = declare("weight", (count, x.size))
    bias = declare("bias", (count,), 0.0) if spec.router_bias else None
    logits = b.buffer("router_logits", count)
    b.add(Linear(x, logits, weight, bias))
    return logits


def _expert_bias(
    b: PlanBuilder, name: str, shape: tuple[int, int], layouts: Sequence[Sequence[Source]] | None
) -> str | None:
    return None if layouts is None else b.experts(name, shape, layouts, initial=0.0)
