"""The scheduler's arguments: step size, queue limits, prefix caching, worker timeouts."""

import math
from dataclasses import dataclass

from taco_llm.args.flags import SCHEDULER, WORKER, flag
from taco_proto.config import (
    DEFAULT_HEAD_TOKENS,
    DEFAULT_SPECULATIVE_TOKENS,
    MAX_SPECULATIVE_TOKENS,
    RedisConfig,
    SchedulerConfig,
)
from taco_proto.errors import ArgumentError

_SCHEDULER = (SCHEDULER,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerArgs:
    """Arguments of the scheduler.

    Raises:
        ConfigurationError: a value is out of range.
    """

    max_num_seqs: int = flag(
        "Maximum sequences in one step. A higher value raises throughput and memory use; a lower "
        "one shortens the time between tokens.",
        (SCHEDULER, WORKER),
        default=256,
        parse=int,
        metavar="SEQUENCES",
    )
    max_num_batched_tokens: int = flag(
        "Maximum tokens that one step computes: decoded tokens and prompt chunks together. A lower "
        "value shortens the time between tokens; a higher one computes long prompts faster. If "
        "scheduler and worker have different values, the lower one applies.",
        (SCHEDULER, WORKER),
        default=2048,
        parse=int,
        metavar="TOKENS",
    )
    long_prefill_token_threshold: int | None = flag(
        "Maximum tokens per step for a prompt that is too long for one step, while shorter prompts "
        "wait behind it. It also gets the tokens that they leave. A lower value starts more short "
        "prompts before a long one; 0 starts none before it. Default: a quarter of "
        "--max-num-batched-tokens.",
        _SCHEDULER,
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    max_waiting_requests: int = flag(
        "Maximum requests in the queue. The scheduler rejects further requests with status 429.",
        _SCHEDULER,
        default=4096,
        parse=int,
        metavar="REQUESTS",
    )
    max_waiting_tokens: int = flag(
        "Maximum prompt tokens in the queue. The scheduler rejects further requests with status "
        "429.",
        _SCHEDULER,
        default=2**24,
        parse=int,
        metavar="TOKENS",
    )
    enable_prefix_caching: bool = flag(
        "Keep the KV cache of finished requests and reuse it for prompts with the same prefix.",
        _SCHEDULER,
        default=True,
    )
    apc_offload_min_access_threshold: int = flag(
        "Minimum number of requests that must have used a KV cache block before it is offloaded. A "
        "higher value keeps host memory for prefixes that are used again.",
        _SCHEDULER,
        default=1,
        parse=int,
        metavar="REQUESTS",
    )
    apc_offload_enable_hit_cnt: bool = flag(
        "Log after every 100 blocks how many were found on the device and in host memory, and how "
        "many were computed. Use it to judge the offload settings.",
        _SCHEDULER,
        default=False,
        is_advanced=True,
    )
    apc_offload_gpu_evictor_limit: int = flag(
        "Maximum cached blocks on the device that no request uses; -1 means no limit. For "
        "debugging only.",
        _SCHEDULER,
        default=-1,
        parse=int,
        metavar="BLOCKS",
        is_advanced=True,
    )
    max_pinned_share: float = flag(
        "Maximum fraction of the device's KV cache for pinned prefixes, which requests ask to keep "
        "(cache_control, prompt_cache_retention). One API key gets at most half of it. 0 disables "
        "pinning.",
        _SCHEDULER,
        default=0.5,
        parse=float,
        metavar="FRACTION",
    )
    preemption_mode: str | None = flag(
        "What happens to the KV cache of a preempted sequence. recompute treats it like any cached "
        "prefix. swap moves it to host memory if the device has no free blocks, regardless of "
        "--apc-offload-min-access-threshold. Default: recompute.",
        _SCHEDULER,
        default=None,
        choices=("recompute", "swap"),
        is_advanced=True,
    )
    scheduler_delay_factor: float = flag(
        "While sequences run, delay a prompt by this factor times the duration of the last step "
        "with prompts. Raise it so that one step computes several prompts.",
        _SCHEDULER,
        default=0.0,
        parse=float,
        metavar="FACTOR",
        is_advanced=True,
    )
    enable_chunked_prefill: bool = flag(
        "Compute long prompts in chunks, in the same steps as decoding sequences. The scheduler "
        "always does: False is an error.",
        _SCHEDULER,
        default=True,
        is_advanced=True,
    )
    log_stats: bool = flag(
        "Log a line with throughput and load every 5 seconds while requests run.",
        _SCHEDULER,
        default=True,
        is_advanced=True,
        old_negations=("disable_log_stats",),
    )
    step_timeout: float = flag(
        "Declare a worker lost if one step takes more seconds than this and more than 10 times its "
        "slowest step so far. Its requests continue on other workers. Raise it if a normal step "
        "can take longer.",
        _SCHEDULER,
        default=120.0,
        parse=float,
        metavar="SECONDS",
    )
    worker_timeout: float = flag(
        "Heartbeat timeout: declare a worker lost after this many seconds without a heartbeat. A "
        "worker sends one every 2 seconds. Its requests continue on other workers.",
        _SCHEDULER,
        default=10.0,
        parse=float,
        metavar="SECONDS",
    )
    worker_drain_timeout: float = flag(
        "Seconds that the requests of a stopping worker have to finish before they continue on "
        "other workers.",
        _SCHEDULER,
        default=30.0,
        parse=float,
        metavar="SECONDS",
    )

    num_speculative_tokens: int | None = flag(
        "Maximum draft tokens per sequence in a step, from a draft model, heads or [ngram]. A "
        "worker verifies fewer if that is faster. The lookahead cache has its own setting, "
        f"copy_length. Default: {DEFAULT_SPECULATIVE_TOKENS}, of heads {DEFAULT_HEAD_TOKENS}; "
        f"at most {MAX_SPECULATIVE_TOKENS}.",
        (SCHEDULER, WORKER),
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    speculative_max_model_len: int | None = flag(
        "Disable speculation for sequences longer than this many tokens. Default: no limit.",
        _SCHEDULER,
        default=None,
        parse=int,
        metavar="TOKENS",
        is_advanced=True,
    )
    speculative_disable_by_batch_size: int | None = flag(
        "Disable speculation while more than this many requests are running or waiting. Default: "
        "no limit.",
        _SCHEDULER,
        default=None,
        parse=int,
        metavar="REQUESTS",
    )

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_waiting_requests",
            "max_waiting_tokens",
        ):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        check_at_least("num_speculative_tokens", self.num_speculative_tokens, 1)
        check_at_least("speculative_max_model_len", self.speculative_max_model_len, 1)
        check_at_least(
            "speculative_disable_by_batch_size", self.speculative_disable_by_batch_size, 0
        )
        for name in ("step_timeout", "worker_timeout", "worker_drain_timeout"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be above 0, got {getattr(self, name)}")
        if (self.num_speculative_tokens or 0) > MAX_SPECULATIVE_TOKENS:
            raise ArgumentError(
                f"num_speculative_tokens must be at most {MAX_SPECULATIVE_TOKENS}, got "
                f"{self.num_speculative_tokens}"
            )
        if not 0 <= self.max_pinned_share <= 1:
            raise ArgumentError(
                f"max_pinned_share must be between 0 and 1, got {self.max_pinned_share}"
            )
        if not 0 <= self.scheduler_delay_factor < math.inf:
            raise ArgumentError(
                f"scheduler_delay_factor must be a number from 0 on, got "
                f"{self.scheduler_delay_factor}"
            )
        check_at_least("apc_offload_min_access_threshold", self.apc_offload_min_access_threshold, 1)
        check_at_least("apc_offload_gpu_evictor_limit", self.apc_offload_gpu_evictor_limit, -1)
        if not self.enable_chunked_prefill:
            raise ArgumentError(
                "enable_chunked_prefill cannot be turned off: the scheduler always computes long "
                "prompts in chunks"
            )

    def scheduler_config(
        self, listen: str = "", redis: RedisConfig | None = None, advertise: str | None = None
    ) -> SchedulerConfig:
        return SchedulerConfig(
            listen=listen,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            max_waiting_requests=self.max_waiting_requests,
            max_waiting_tokens=self.max_waiting_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            offload_min_accesses=self.apc_offload_min_access_threshold,
            log_hit_counts=self.apc_offload_enable_hit_cnt,
            max_cached_device_blocks=(
                None
                if self.apc_offload_gpu_evictor_limit < 0
                else self.apc_offload_gpu_evictor_limit
            ),
            max_pinned_share=self.max_pinned_share,
            swaps_preempted=self.preemption_mode == "swap",
            prompt_delay_factor=self.scheduler_delay_factor,
            log_stats=self.log_stats,
            step_timeout=self.step_timeout,
            worker_timeout=self.worker_timeout,
            worker_drain_timeout=self.worker_drain_timeout,
            num_speculative_tokens=self.num_speculative_tokens or DEFAULT_SPECULATIVE_TOKENS,
            speculative_max_model_len=self.speculative_max_model_len,
            speculative_disable_by_batch_size=self.speculative_disable_by_batch_size,
            redis=redis,
            advertise=advertise,
        )


def check_at_least(name: str, value: int | None, low: int) -> None:
    """Raises ConfigurationError unless `value` is None or an integer of at least `low`."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ArgumentError(f"{name} must be an integer of at least {low}, got {value!r}")
