"""Validation: checks of the configuration, workers, draft workers and requests."""

import math
from collections.abc import Set
from typing import Protocol

from taco_proto.config import MAX_SPECULATIVE_TOKENS, SchedulerConfig
from taco_proto.drafts import DrafterInfo
from taco_proto.errors import ConfigurationError
from taco_proto.log_text import MAX_MODEL_CHARS, one_line
from taco_proto.logits_processors import MAX_PROCESSOR_NAME_CHARS
from taco_proto.logprob_limits import excess
from taco_proto.requests import MAX_PIN_SECONDS, MAX_PINS, GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import WorkerInfo
from taco_scheduler.admission.rejections import RejectedError
from taco_scheduler.token_ids import TOKEN_BYTES, token_array

MAX_BLOCKS = 2**26
MAX_SLOTS = 2**16
MAX_VOCABULARY = 2**24
MAX_ENTRIES = 1024  # of the lists in a worker's description
MAX_SALT_CHARS = 4096
# What all workers must have loaded.
_LOADED = ("logits_processors", "adapters")
# What workers cannot do with recurrent states, which neither roll back nor go to a tier.
_NOT_RECURRENT = ("max_draft_tokens", "max_forced_tokens", "num_host_blocks", "num_disk_blocks")


class InvalidWorkerError(ValueError):
    """A worker or draft worker describes itself with values that are out of range."""


class WorkerRejectedError(Exception):
    """The scheduler has no use for a draft worker now: every worker has one."""


class OtherModelError(ValueError):
    """A worker serves another model than the attached workers."""


class ValidatedRequest(Protocol):
    """The fields of a request that `check_fit` and `length_limit` read.

    Attributes:
        max_token_id: the largest id of its prompt and of the tokens generated before.
    """

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def max_token_id(self) -> int: ...

    @property
    def sampling(self) -> SamplingParams: ...

    @property
    def stop_token_ids(self) -> Set[int]: ...

    @property
    def adapter(self) -> str: ...


def check_config(config: SchedulerConfig) -> None:
    """Raises:
    ConfigurationError: a limit is out of range.
    """
    for name in (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_waiting_requests",
        "max_waiting_tokens",
    ):
        if getattr(config, name) < 1:
            raise ConfigurationError(f"{name} must be at least 1, got {getattr(config, name)}")
    if (config.long_prefill_token_threshold or 0) < 0:
        raise ConfigurationError(
            "long_prefill_token_threshold must be at least 0, got "
            f"{config.long_prefill_token_threshold}"
        )
    for name in ("step_timeout", "worker_timeout", "worker_drain_timeout"):
        if not getattr(config, name) > 0:
            raise ConfigurationError(f"{name} must be above 0, got {getattr(config, name)}")


def check_worker(info: WorkerInfo) -> None:
    """Raises: InvalidWorkerError: a size is out of range, or a name is invalid or occurs twice."""
    if not info.model.isprintable() or len(info.model) > MAX_MODEL_CHARS:
        raise InvalidWorkerError(
            f"the model's name must be at most {MAX_MODEL_CHARS} printable characters, got "
            f"{one_line(info.model, 100)}"
        )
    for name, count in (
        ("eos_token_ids", len(info.eos_token_ids)),
        ("default_sampling", len(info.default_sampling)),
        ("logits_processors", len(info.logits_processors)),
        ("adapters", len(info.adapters)),
    ):
        if count > MAX_ENTRIES:
            raise InvalidWorkerError(f"{name} must have at most {MAX_ENTRIES} entries, got {count}")
    for name in info.logits_processors:
        if not name.isprintable() or len(name) > MAX_PROCESSOR_NAME_CHARS:
            raise InvalidWorkerError(
                f"a logits processor's name must be at most {MAX_PROCESSOR_NAME_CHARS} printable "
                f"characters, got {one_line(name, 100)}"
            )
    for name in info.adapters:
        if not name or not name.isprintable() or len(name) > MAX_MODEL_CHARS:
            raise InvalidWorkerError(
                f"an adapter's name must be 1 to {MAX_MODEL_CHARS} printable characters, got "
                f"{one_line(name, 100)}"
            )
    if len(set(info.adapters)) < len(info.adapters):
        raise InvalidWorkerError("adapters must have different names, got one of them twice")
    ranges = {
        "block_size": (1, 2**16),
        "num_blocks": (1, MAX_BLOCKS),
        "max_num_seqs": (1, MAX_SLOTS),
        "max_num_batched_tokens": (1, 2**30),
        "max_model_len": (2, 2**30),
        "vocab_size": (1, MAX_VOCABULARY),
        "num_host_blocks": (0, MAX_BLOCKS),
        "num_disk_blocks": (0, MAX_BLOCKS),
        "max_forced_tokens": (0, MAX_SPECULATIVE_TOKENS),
        "num_state_snapshots": (0, MAX_BLOCKS),
    }
    for name, (low, high) in ranges.items():
        if not low <= getattr(info, name) <= high:
            raise InvalidWorkerError(
                f"{name} must be between {low} and {high}, got {getattr(info, name)}"
            )
    if info.is_recurrent:
        for name in _NOT_RECURRENT:
            if getattr(info, name):
                raise InvalidWorkerError(
                    f"{name} must be 0 for a recurrent model, got {getattr(info, name)}"
                )


def check_same_model(info: WorkerInfo, other: WorkerInfo) -> None:
    """Raises: OtherModelError: the workers cannot continue each other's sequences."""
    for name in ("model", "vocab_size", "eos_token_ids", "block_size", *_LOADED):
        own, others = getattr(info, name), getattr(other, name)
        if own != others:
            raise OtherModelError(
                f"worker {info.name} has {name} {own!r}, the attached workers have {others!r}"
            )


def check_drafter(drafter: DrafterInfo, worker: WorkerInfo) -> None:
    """Raises: InvalidWorkerError: the worker cannot verify this draft worker's drafts."""
    if not worker.max_draft_tokens:
        raise InvalidWorkerError(
            f"worker {worker.name} does not verify drafts: start it with --num-speculative-tokens"
        )
    if drafter.vocab_size != worker.vocab_size:
        raise InvalidWorkerError(
            f"the draft model {drafter.model} has a vocabulary of {drafter.vocab_size} tokens, but "
            f"{worker.model} has {worker.vocab_size}: use a draft model with the same vocabulary"
        )


def check_message(message: GenerateRequest) -> None:
    """Check a request as far as that needs no worker.

    Raises:
        RejectedError: 400, a field is invalid.
    """
    sampling = message.sampling
    for packed in (message.token_ids, *message.emitted_token_ids):
        if len(packed) % TOKEN_BYTES:
            raise RejectedError(400, "token ids must be packed int32")
        if packed and token_array(packed).min() < 0:
            raise RejectedError(400, "token ids must not be negative")
    if not message.token_ids:
        raise RejectedError(400, "the prompt has no tokens")
    _check_resumption(message)
    if sampling.use_beam_search and message.grammar is not None:
        raise RejectedError(400, "use_beam_search cannot be combined with a grammar")
    if sampling.seed is None or sampling.max_tokens is None:
        raise RejectedError(400, "seed and max_tokens must be set")
    if message.deadline is not None and not math.isfinite(message.deadline):
        raise RejectedError(400, f"the deadline must be a finite time, got {message.deadline}")
    if not 0 < message.tenant.weight < math.inf:
        raise RejectedError(
            400, f"the tenant's weight must be finite and above 0, got {message.tenant.weight:g}"
        )
    if len(message.adapter) > MAX_MODEL_CHARS:
        raise RejectedError(400, f"adapter may have at most {MAX_MODEL_CHARS} characters")
    if len(message.cache_salt) > MAX_SALT_CHARS:
        raise RejectedError(400, f"cache_salt may have at most {MAX_SALT_CHARS} characters")
    if len(message.prompt_cache_key) > MAX_SALT_CHARS:
        raise RejectedError(400, f"prompt_cache_key may have at most {MAX_SALT_CHARS} characters")
    if len(message.pins) > MAX_PINS:
        raise RejectedError(
            400, f"a request may have at most {MAX_PINS} pins, got {len(message.pins)}"
        )
    for pin in message.pins:
        if not 0 < pin.num_tokens <= len(message.token_ids) // TOKEN_BYTES:
            num_prompt = len(message.token_ids) // TOKEN_BYTES
            raise RejectedError(
                400, f"a pin must cover 1 to {num_prompt} prompt tokens, got {pin.num_tokens}"
            )
        if not 0 < pin.seconds <= MAX_PIN_SECONDS:
            raise RejectedError(
                400,
                f"a pin may last at most {MAX_PIN_SECONDS:g} seconds, got {pin.seconds:g}",
            )


def _check_resumption(message: GenerateRequest) -> None:
    num_sequences, finished = message.sampling.num_outputs, set(message.finished_indexes)
    if message.sampling.use_beam_search and any(message.emitted_token_ids):
        raise RejectedError(400, "a beam search emits no tokens before its end: it starts again")
    if message.emitted_token_ids and len(message.emitted_token_ids) != num_sequences:
        raise RejectedError(
            400,
            f"emitted_token_ids must have 0 or {num_sequences} entries, "
            f"got {len(message.emitted_token_ids)}",
        )
    if not all(0 <= index < num_sequences for index in finished):
        raise RejectedError(400, f"finished_indexes must be below {num_sequences}")
    if len(finished) == num_sequences:
        raise RejectedError(400, "all sequences of the request have finished")


def check_fit(request: ValidatedRequest, info: WorkerInfo) -> None:
    """Check that a worker can run a request.

    Raises:
        RejectedError: 400, the request exceeds a limit of the worker or of its model; 404, the
            workers have not loaded its adapter.
    """
    num_tokens = request.num_prompt_tokens
    if num_tokens >= info.max_model_len:
        raise RejectedError(
            400,
            f"context_length_exceeded: this model's maximum context length is {info.max_model_len} "
            f"tokens, and a prompt of {num_tokens} tokens leaves no room for an answer",
        )
    if num_tokens > info.num_blocks * info.block_size:
        raise RejectedError(
            400,
            f"context_length_exceeded: the KV memory holds {info.num_blocks * info.block_size} "
            f"tokens, the prompt has {num_tokens}",
        )
    sampling = request.sampling
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(sampling, name) or 0) > info.max_logprobs:
            raise RejectedError(
                400,
                f"{name} must be at most {info.max_logprobs}, got {getattr(sampling, name)}",
            )
    if problem := excess(sampling, num_tokens, sampling.max_tokens or 1):
        raise RejectedError(400, problem)
    if len(listed := sampling.logprob_token_ids or ()) > info.max_logprobs:
        raise RejectedError(
            400, f"logprob_token_ids may have at most {info.max_logprobs} ids, got {len(listed)}"
        )
    if max(listed, default=0) >= info.vocab_size:
        raise RejectedError(400, f"logprob_token_ids must be below {info.vocab_size}")
    for processor in sampling.logits_processors or ():
        if isinstance(processor, str) and processor not in info.logits_processors:
            raise RejectedError(400, f"the workers have not loaded {processor!r:.100}")
    if (adapter := request.adapter) and adapter not in info.adapters:
        raise RejectedError(404, f"the workers have not loaded the adapter {adapter!r:.100}")
    if request.max_token_id >= info.vocab_size:
        raise RejectedError(
            400, f"token ids must be below {info.vocab_size}, got {request.max_token_id}"
        )
    if any(token >= info.vocab_size for token in sampling.logit_bias or ()):
        raise RejectedError(400, f"logit_bias token ids must be below {info.vocab_size}")
    if max(sampling.allowed_token_ids or (0,)) >= info.vocab_size:
        raise RejectedError(400, f"allowed_token_ids must be below {info.vocab_size}")
    if any(token >= info.vocab_size for token in request.stop_token_ids):
        raise RejectedError(400, f"stop_token_ids must be below {info.vocab_size}")


def length_limit(request: ValidatedRequest, info: WorkerInfo) -> int:
    """Length in tokens, prompt included, at which a sequence of the request ends.

    The last token's KV is never computed, so that token needs no block.
    """
    assert request.sampling.max_tokens is not None
    return min(
        request.num_prompt_tokens + request.sampling.max_tokens,
        info.max_model_len,
        info.num_blocks * info.block_size + 1,
    )
