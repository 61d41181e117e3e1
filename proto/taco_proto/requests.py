"""What flows between a client of the engine and the scheduler: token ids in, token ids out."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from taco_proto.sampling_params import SamplingParams


class FinishReason(enum.IntEnum):
    """Why a sequence ended. Values are those of `FinishReason` in scheduler.proto."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    ABORTED = 3


# Work of this priority or beyond is offline: it runs on what the rest leaves, and gives way to it.
LOW_PRIORITY = 1_000_000
MAX_PINS = 4
MAX_PIN_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Whose a request is, and what its owner may have of the engine.

    It travels with each request, so that a scheduler needs no list of tenants and a change holds
    from the next request on.

    Attributes:
        name: the same for all requests of one owner; never a key. Empty: nobody is told apart.
        weight: share of the engine, beside those of the tenants that want it too. Above 0.
        max_requests_per_minute, max_tokens_per_minute, max_concurrent_requests: 0: no limit.
            Tokens are those of prompts and answers.
    """

    name: str = ""
    weight: float = 1.0
    max_requests_per_minute: int = 0
    max_tokens_per_minute: int = 0
    max_concurrent_requests: int = 0


ANYBODY = Tenant()


@dataclass(frozen=True, slots=True)
class PrefixPin:
    """The first `num_tokens` of a prompt are kept in the prefix cache, in whole blocks, for so many
    seconds after they were computed, as far as there is room for that.
    """

    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request as the scheduler sees it.

    Attributes:
        handle: names the request within its client's stream.
        request_id: names it in logs.
        token_ids: the prompt, packed little-endian int32.
        sampling: its `seed` and `max_tokens` are set (the client of the engine draws a seed).
        emitted_token_ids: for each sequence the tokens that the client has, packed likewise, when
            a request is submitted again: generation continues after them. Empty: the client has
            none of any sequence.
        finished_indexes: sequences that have ended and do not run again.
        priority: lower runs sooner; `LOW_PRIORITY` and beyond is offline work.
        quota_charged: the request was submitted before and a scheduler may have admitted it: no
            quota and no queue limit is applied again.
        deadline: when the request has waited too long, in seconds of this process's
            `time.monotonic`; None: never. A message carries the seconds that remain.
        tenant: whose request it is.
        adapter: name of the adapter to run it with; empty: the base model.
        cache_salt: requests with different salts share no cached prefix.
        pins: beginnings of the prompt that are to be kept, `MAX_PINS` at most.
        prompt_cache_key: requests with the same one begin alike; empty: nothing is known of that.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a client of the engine must know of the model that is served.

    Attributes:
        ready: new requests are taken.
        license_problem: why they are not, if no worker has a license: for operators.
        draining: the scheduler shuts down: what is there may end, and nothing new is taken.
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
