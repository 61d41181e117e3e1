"""What a gateway sends to the scheduler, and the model info that it gets back."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from taco_proto.grammars import Grammar
from taco_proto.sampling_params import SamplingParams


class FinishReason(enum.IntEnum):
    """Why a sequence ended. Values are those of `FinishReason` in scheduler.proto."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    ABORTED = 3


# Requests of this priority or above are offline work: they use free capacity and are preempted.
LOW_PRIORITY = 1_000_000
MAX_PINS = 4
MAX_PIN_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """The owner of a request, and the owner's share and limits.

    It travels with each request: a scheduler needs no list of tenants, and a change applies from
    the next request on.

    Attributes:
        name: the same for all requests of one owner; never an API key. Empty: one tenant for all.
        weight: share of the engine relative to other tenants that compete for it; above 0.
        max_requests_per_minute, max_tokens_per_minute, max_concurrent_requests: 0: no limit.
            Tokens include prompts and generated tokens.
    """

    name: str = ""
    weight: float = 1.0
    max_requests_per_minute: int = 0
    max_tokens_per_minute: int = 0
    max_concurrent_requests: int = 0


ANYBODY = Tenant()


@dataclass(frozen=True, slots=True)
class PrefixPin:
    """Pins the first `num_tokens` of a prompt in the prefix cache, in whole blocks.

    The pin ends `seconds` after the tokens were computed, or earlier if pins exceed their limit.
    """

    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request in token ids.

    Attributes:
        handle: number of the request in its client's stream.
        request_id: name of the request in logs.
        token_ids: the prompt, packed little-endian int32.
        sampling: its `seed` and `max_tokens` are set (the client of the engine draws a seed).
        emitted_token_ids: resubmission: for each sequence the tokens that the client already has,
            packed like `token_ids`; generation continues after them. Empty: no tokens yet.
        finished_indexes: resubmission: sequences that have ended and do not run again.
        priority: lower runs sooner; `LOW_PRIORITY` and above is offline work.
        quota_charged: the request was submitted before and a scheduler may have admitted it: no
            quota and no queue limit is applied again.
        deadline: `time.monotonic` of this process at which a request that has not run fails; None:
            no deadline. A message carries the remaining seconds.
        tenant: owner of the request.
        adapter: name of the adapter to run it with; empty: the base model.
        cache_salt: requests with different salts share no cached prefix.
        pins: prefixes of the prompt to keep in the cache, at most `MAX_PINS`.
        prompt_cache_key: requests with the same key share a prefix, and are routed together; empty:
            unknown.
        grammar: what the text must match; None: free text.
    """

    request_id: str
    sampling: SamplingParams
    handle: int = 0
    token_ids: bytes = b""
    emitted_token_ids: tuple[bytes, ...] = ()
    finished_indexes: tuple[int, ...] = ()
    quota_charged: bool = False
    priority: int = 0
    deadline: float | None = None
    tenant: Tenant = ANYBODY
    adapter: str = ""
    cache_salt: str = ""
    pins: tuple[PrefixPin, ...] = ()
    prompt_cache_key: str = ""
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The served model and its limits, as all workers together have them.

    Attributes:
        ready: a worker accepts new requests.
        license_problem: for operators: why no worker has a license; empty: one has.
        draining: the scheduler shuts down: running requests may end, new ones are rejected.
        logits_processors: names of the processors that the workers have loaded.
        adapters: names of the LoRA adapters that the workers have loaded.
    """

    model: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    num_blocks: int
    max_logprobs: int
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    ready: bool = True
    license_problem: str = ""
    draining: bool = False
    logits_processors: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
