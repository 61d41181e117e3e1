"""What models with recurrent states do not support."""

from __future__ import annotations

from dataclasses import replace

from taco_proto.config import WorkerConfig
from taco_worker.models.plan.model_plan import ModelPlan


def limit_recurrent(config: WorkerConfig, plan: ModelPlan) -> WorkerConfig:
    """The configuration without what a model with recurrent states does not support.

    A state cannot be taken back as rejected drafts need it. KV in a lower tier is of no use without
    the states at the ends of its blocks.

    Raises:
        ValueError: speculation or a tier was asked for, or no layer has attention.
    """
    if not plan.states:
        return config
    architecture = plan.architecture
    if not plan.kv_entries:
        raise ValueError(f"{architecture} without a layer of attention is not supported")
    if config.speculation is not None:
        raise ValueError(f"{architecture} has recurrent states: speculation is not supported")
    if config.kv_disk_path is not None or config.host_kv_bytes:
        raise ValueError(
            f"{architecture} has recurrent states: KV tiers on the host and on disk are not "
            "supported"
        )
    return replace(config, max_forced_tokens=0)


def check_draft_plan(plan: ModelPlan) -> None:
    """Raises ValueError if a draft model has recurrent states, which drafts would change."""
    if plan.states:
        raise ValueError(f"{plan.architecture} has recurrent states: it cannot draft")
