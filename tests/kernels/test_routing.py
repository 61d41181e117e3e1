"""The reference routers against those of transformers, and how they order equal scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe as ernie4_5_moe
from transformers.models.glm4_moe import modeling_glm4_moe as glm4_moe
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.granitemoe import modeling_granitemoe as granitemoe
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.olmoe import modeling_olmoe as olmoe
from transformers.models.phimoe import modeling_phimoe as phimoe
from transformers.models.qwen2_moe import modeling_qwen2_moe as qwen2_moe

from taco_kernels.reference.routing import route
from taco_kernels.router import Router

NUM_EXPERTS = 16


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def built(module: Any, router: str, **fields: Any) -> nn.Module:
    """A router of transformers whose logits are its input."""
    config_class = getattr(module, f"{router.partition('Top')[0]}Config")
    config = config_class(hidden_size=NUM_EXPERTS, num_attention_heads=2, **fields)
    config.num_local_experts = config.num_experts = NUM_EXPERTS
    oracle: nn.Module = getattr(module, router)(config).eval()
    state = {name: torch.zeros_like(tensor) for name, tensor in oracle.state_dict().items()}
    oracle.load_state_dict(state | {"weight": torch.eye(NUM_EXPERTS)})
    return oracle


def of_mixtral(top_k: int) -> tuple[nn.Module, Router]:
    oracle = built(mixtral, "MixtralTopKRouter", num_experts_per_tok=top_k)
    return oracle, Router("softmax", NUM_EXPERTS, top_k, renormalize=True)


def of_qwen2_moe(renormalize: bool) -> tuple[nn.Module, Router]:
    oracle = built(
        qwen2_moe,
        "Qwen2MoeTopKRouter",
        num_experts_per_tok=4,
        norm_topk_prob=renormalize,
    )
    return oracle, Router("softmax", NUM_EXPERTS, 4, renormalize=renormalize)


def of_olmoe() -> tuple[nn.Module, Router]:
    oracle = built(olmoe, "OlmoeTopKRouter", num_experts_per_tok=8)
    return oracle, Router("softmax", NUM_EXPERTS, 8)


def of_gpt_oss() -> tuple[nn.Module, Router]:
    oracle = built(gpt_oss, "GptOssTopKRouter", num_experts_per_tok=4)
    return oracle, Router("softmax_topk", NUM_EXPERTS, 4)


def of_granitemoe() -> tuple[nn.Module, Router]:
    oracle = built(granitemoe, "GraniteMoeTopKRouter", num_experts_per_tok=3)
    return oracle, Router("softmax_topk", NUM_EXPERTS, 3)


def of_deepseek_v2(method: str) -> tuple[nn.Module, Router]:
    oracle = built(
        deepseek_v2,
        "DeepseekV2TopkRouter",
        topk_method=method,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=3,
        routed_scaling_factor=16.0,
    )
    groups = (4, 2) if method == "group_limited_greedy" else (1, 1)
    return oracle, Router("softmax", NUM_EXPERTS, 3, False, 16.0, *groups)


def of_deepseek_v3(
    module: Any, name: str, groups: tuple[int, int], renormalize: bool
) -> tuple[nn.Module, Router]:
    oracle = built(
        module,
        f"{name}TopkRouter",
        n_group=groups[0],
        topk_group=groups[1],
        num_experts_per_tok=4,
        norm_topk_prob=renormalize,
        routed_scaling_factor=2.5,
    )
    oracle.e_score_correction_bias = numbers(NUM_EXPERTS, seed=7)
    return oracle, Router("sigmoid", NUM_EXPERTS, 4, renormalize, 2.5, *groups, "sum_of_two")


def of_ernie() -> tuple[nn.Module, Router]:
    oracle = built(ernie4_5_moe, "Ernie4_5_MoeTopKRouter", num_experts_per_tok=4)
    bias = 0.1 * numbers(NUM_EXPERTS, seed=7)
    state = oracle.state_dict()
    oracle.load_state_dict(state | {"moe_statics.e_score_correction_bias": bias[None]})
    oracle.register_buffer("e_score_correction_bias", bias)
    return oracle, Router("softmax", NUM_EXPERTS, 4, renormalize=True)


def of_phimoe(jitter: float) -> tuple[nn.Module, Router]:
    oracle = built(
        phimoe,
        "PhimoeTopKRouter",
        num_experts_per_tok=2,
        router_jitter_noise=jitter,
    )
    return oracle, Router("sparsemixer", NUM_EXPERTS, 2, jitter=jitter)


@pytest.mark.parametrize(
    ("oracle", "router"),
    [
        of_mixtral(1),
        of_mixtral(2),
        of_qwen2_moe(False),
        of_qwen2_moe(True),
        of_olmoe(),
        of_gpt_oss(),
        of_granitemoe(),
        of_deepseek_v2("greedy"),
        of_deepseek_v2("group_limited_greedy"),
        of_deepseek_v3(deepseek_v3, "DeepseekV3", (4, 2), True),
        of_deepseek_v3(deepseek_v3, "DeepseekV3", (1, 1), False),
        of_deepseek_v3(glm4_moe, "Glm4Moe", (2, 1), True),
        of_ernie(),
        of_phimoe(0.01),
        of_phimoe(0.4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else value.kind,
)
def test_agrees_with_transformers(oracle: nn.Module, router: Router) -> None:
    logits = 2 * numbers(200, NUM_EXPERTS)
    with torch.no_grad():
        _, weights, ids = oracle(logits)

    ours_ids, ours = route(logits, router, getattr(oracle, "e_score_correction_bias", None))

    assert ours_ids.dtype == torch.int32
    dense, dense_ours = torch.zeros(2, *logits.shape)
    torch.testing.assert_close(
        dense_ours.scatter(1, ours_ids.long(), ours), dense.scatter(1, ids, weights.float())
    )


@pytest.mark.parametrize(
    "router",
    [
        Router("softmax", 8, 3),
        Router("softmax", 8, 3, num_groups=4, top_groups=2),
        Router("softmax_topk", 8, 3),
        Router("sigmoid", 8, 3, num_groups=4, top_groups=2, group_score="sum_of_two"),
        Router("sparsemixer", 8, 2),
    ],
    ids=lambda router: f"{router.kind}-{router.num_groups}",
)
def test_equal_scores_go_to_the_lower_index(router: Router) -> None:
    """Of experts, and of groups."""
    logits = torch.zeros(2, 8)
    logits[1, 5] = 1

    ids, _ = route(logits, router)

    assert ids[0].tolist() == [0, 1, 2][: router.top_k]
    # The best group is that of 4 and 5, then the first.
    assert ids[1].tolist() == [5, 0, 1][: router.top_k]


def test_best_come_first() -> None:
    ids, weights = route(torch.tensor([[1.0, 3.0, 2.0]]), Router("softmax", 3, 3))

    assert ids.tolist() == [[1, 2, 0]]
    assert weights[0].tolist() == sorted(weights[0].tolist(), reverse=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "argmax"}, "unknown router kind 'argmax'"),
        ({"num_experts": 0}, "1 to 1024 experts, not 0"),
        ({"num_experts": 2000}, "1 to 1024 experts, not 2000"),
        ({"num_groups": 3}, "8 experts cannot form 3 groups"),
        ({"num_groups": 2, "top_groups": 3}, "best 3 of 2 groups"),
        ({"top_k": 9}, "top_k must be 1 to 8 .* not 9"),
        ({"num_groups": 4, "top_k": 3}, "top_k must be 1 to 2 with 2 experts"),
        ({"group_score": "sum_of_two"}, "softmax router scores groups by their greatest"),
        (
            {"kind": "sigmoid", "group_score": "sum_of_two", "num_groups": 8, "top_groups": 2},
            "groups of one expert",
        ),
        ({"jitter": -0.1}, "jitter of a router must be 0 or above, not -0.1"),
        ({"kind": "sparsemixer", "top_k": 3}, "sparsemixer chooses two"),
    ],
)
def test_error_names_the_contradiction(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Router("softmax", 8, 2), **fields)


def test_refuses_other_logits_and_biases() -> None:
    with pytest.raises(ValueError, match=r"\[rows, 4\], not \[2, 5\]"):
        route(torch.zeros(2, 5), Router("softmax", 4, 1))
    with pytest.raises(ValueError, match="softmax_topk router cannot use a bias"):
        route(torch.zeros(2, 4), Router("softmax_topk", 4, 1), torch.zeros(4))
