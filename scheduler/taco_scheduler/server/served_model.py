"""The model info for clients: the limits of all workers together."""

from collections.abc import Collection

from taco_proto.licenses import LicenseState
from taco_proto.requests import ModelInfo
from taco_scheduler.core.replica import Replica

NO_MODEL = ModelInfo(
    model="",
    max_model_len=0,
    vocab_size=0,
    eos_token_ids=(),
    block_size=0,
    num_blocks=0,
    max_logprobs=0,
    ready=False,
)


def served_model(replicas: Collection[Replica]) -> ModelInfo | None:
    """The model info of workers whose limits may differ: a request is routed to one that can run
    it. None: no worker is attached, or all are draining.
    """
    staying = [replica for replica in replicas if not replica.is_draining]
    takers = [replica for replica in staying if replica.accepts_requests]
    infos = [replica.info for replica in takers or staying]
    if not infos:
        return None
    info = infos[0]
    return ModelInfo(
        model=info.model,
        max_model_len=max(info.max_model_len for info in infos),
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
        block_size=info.block_size,
        num_blocks=sum(info.num_blocks for info in infos),
        max_logprobs=max(info.max_logprobs for info in infos),
        default_sampling=info.default_sampling,
        ready=bool(takers),
        license_problem=_license_problem(staying),
        logits_processors=info.logits_processors,
        adapters=info.adapters,
    )


def _license_problem(staying: Collection[Replica]) -> str:
    """Why new requests are rejected without a license; empty: they are not."""
    licenses = [replica.license for replica in staying]
    if any(license_.state is not LicenseState.MISSING for license_ in licenses):
        return ""
    return licenses[0].reason or "it is not said why"
