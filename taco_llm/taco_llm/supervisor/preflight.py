"""Checks of the model before `taco_llm serve` starts any process."""

from taco_draft.quantization import as_for_worker
from taco_gateway.text.tokenizer.checks import check_tokenizer_files
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.model_location import suggesting
from taco_llm.args.replica_args import ReplicaArgs
from taco_proto.errors import ConfigurationError
from taco_worker.models.config import ModelConfig
from taco_worker.recurrent_limits import check_draft_plan
from taco_worker.startup_checks import (
    check_activations,
    check_kv_scales,
    check_memory,
    check_model,
    check_states,
)


def check_before_start(engine: EngineArgs, replicas: ReplicaArgs) -> ModelConfig:
    """Checks the model, the tokenizer and a draft model in milliseconds, without torch.

    Workers on a Ray cluster use the weights and the memory of their nodes, so only the model's
    configuration is checked for them.

    Returns:
        The model's configuration.

    Raises:
        ConfigurationError: a file is missing or damaged, the architecture is not supported, a
            length is out of range, the model does not support the speculation or the KV tiers,
            scales of the KV cache are missing or invalid, or the model does not fit into memory.
    """
    engine.warn_of_unused_tier_arguments()
    worker = engine.worker_config()
    check_tokenizer_files(worker.model)
    with suggesting(engine.model):
        model = check_model(worker.model, has_weights=not replicas.on_ray)
    check_states(worker, model)
    if not replicas.on_ray:
        check_activations(worker, model)
        check_kv_scales(worker, model)
        check_memory(worker, model, replicas.data_parallel_size)
    drafter = engine.drafter_config()
    if drafter is not None:
        try:
            draft = check_model(as_for_worker(drafter.model), has_weights=not replicas.on_ray)
            check_draft_plan(draft.plan)
        except (ConfigurationError, ValueError) as error:
            name = engine.speculative_model
            raise ConfigurationError(f"the speculative model {name}: {error}") from None
    return model
