"""The configuration of each service: frozen dataclasses that the command line is parsed into."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Of the messages between services. It is raised at most once a release (docs/releasing.md).
PROTOCOL_VERSION = 3
# Largest message of the Scheduler service; all sides must agree on it.
MAX_MESSAGE_BYTES = 64 * 2**20
# Seconds that a scheduler takes at most to drain: to end running requests and write the disk tier.
DRAIN_SECONDS = 30.0
# Draft tokens of one sequence in one step; those of heads are trees.
DEFAULT_SPECULATIVE_TOKENS, DEFAULT_HEAD_TOKENS = 5, 16
# Tokens that a grammar forces, of one sequence in one step. With the token before them they are 16,
# the longest step of a sequence that a CUDA graph holds.
DEFAULT_FORCED_TOKENS = 15
MAX_SPECULATIVE_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model to run and how to load it.

    Attributes:
        model: a directory that holds config.json, or a hub id.
        served_model_names: names that clients may use; responses show the first one.
        tokenizer: directory or hub id of the tokenizer; None: the model's own.
        tokenizer_mode: auto, slow (transformers) or mistral (its own files).
        ignore_patterns: files of the hub that are not downloaded.
        model_loader_extra_config: options of the load format; tensorizer has tensorizer_uri.
        merge_lora: directory or hub id of a LoRA adapter that is merged into the weights.
        lora_modules: LoRA adapters that requests may name: pairs of a name, and a directory or hub
            id.
        dtype: auto, half, float16, bfloat16, float or float32.
        quantization: int8 (weights by column, activations by token) or None.
        quantized_activations: auto, int8 or bfloat16, before products with quantized weights on a
            CPU.
        quantize_lm_head: store the LM head in int8 on a CPU, unless it is quantized already.
        max_model_len: longest sequence (prompt and output) in tokens; None: the model's own limit.
        disable_sliding_window: sequences are no longer than the model's window.
        config_format: auto, hf (config.json) or mistral (params.json).
        hf_overrides: fields that replace those of the model's config; objects are merged.
        rope_scaling, rope_theta: replace the values of the model's config.
    """

    model: str
    served_model_names: tuple[str, ...] = ()
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    skip_tokenizer_init: bool = False
    revision: str | None = None
    tokenizer_revision: str | None = None
    download_dir: str | None = None
    ignore_patterns: tuple[str, ...] = ()
    load_format: str = "auto"
    model_loader_extra_config: Mapping[str, Any] | None = None
    merge_lora: str | None = None
    lora_modules: tuple[tuple[str, str], ...] = ()
    dtype: str = "auto"
    quantization: str | None = None
    quantized_activations: str = "auto"
    quantize_lm_head: bool = False
    max_model_len: int | None = None
    disable_sliding_window: bool = False
    config_format: str = "auto"
    hf_overrides: Mapping[str, Any] | None = None
    rope_scaling: Mapping[str, Any] | None = None
    rope_theta: float | None = None
    seed: int = 0

    @property
    def served_name(self) -> str:
        return self.served_model_names[0] if self.served_model_names else self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """How to reach Redis.

    Attributes:
        url: `redis://`, `rediss://` (TLS) or `unix://`; it may name a user and a password.
        password_file: file with the password, read at each connection; None: the URL has it.
        timeout: seconds after which Redis counts as unreachable.
    """

    url: str = field(repr=False)
    password_file: str | None = None
    timeout: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The files of mutual TLS with other services, in PEM; see `taco_common.tls`.

    Attributes:
        ca_file: the certificate authorities that are trusted.
        cert_file, key_file: the service's certificate, which names its role, and the key.
    """

    ca_file: str
    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How a worker drafts and verifies several tokens a step.

    Attributes:
        lookahead_config_dir: directory of lookahead_cache_config.json; None: no lookahead cache.
        lookahead_ignores_prompts: the lookahead cache learns from generated tokens only.
        lookahead_memory_utilization: share of the machine's memory that it may take, 0 to 1;
            None: the value of its configuration.
        ngram_max, ngram_min: longest and shortest match of [ngram] prompt lookup; 0: none.
        heads: a directory or hub id of Medusa or EAGLE heads; None: no heads.
        download_dir: directory for downloaded heads; None: the Hugging Face cache.
        num_speculative_tokens: draft tokens of a sequence in a step; None: the drafter's default.
        acceptance_method: rejection_sampler (exact) or typical_acceptance_sampler.
        posterior_threshold, posterior_alpha: typical acceptance accepts a draft token that is more
            likely than the threshold, or than alpha * exp(-entropy).
        disable_logprobs: return no log probabilities of generated tokens, even if requested.
    """

    lookahead_config_dir: str | None = None
    lookahead_ignores_prompts: bool = False
    lookahead_memory_utilization: float | None = None
    ngram_max: int = 0
    ngram_min: int = 0
    heads: str | None = None
    download_dir: str | None = None
    num_speculative_tokens: int | None = None
    acceptance_method: str = "rejection_sampler"
    posterior_threshold: float = 0.09
    posterior_alpha: float = 0.3
    disable_logprobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LicenseConfig:
    """How a worker asks for its license.

    Attributes:
        host_id: names a host without GPU in a license.
        address: of the license server; empty: one of its two default addresses.
        only_if_found: no license is needed if no address resolves at the start.
        start_seconds: seconds until a server that has not answered counts as unreachable.
        rejection_retry_seconds: maximum wait before the next request after a rejection.
    """

    host_id: str
    address: str = ""
    only_if_found: bool = False
    start_seconds: float = 30.0
    rejection_retry_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker.

    Attributes:
        scheduler: address to dial (`unix:/path` or `host:port`).
        tls: certificates for the scheduler, and for a license server at an https address; None: a
            connection without TLS.
        block_size: tokens a KV block.
        device: cpu, cuda, cuda:N, or auto: a GPU if the machine has one.
        kv_cache_dtype: auto (what the checkpoint asks for, else the model's), float32, bfloat16,
            int8, fp8 (fp8_e4m3) or fp8_e5m2.
        quantization_param_path: file with the scales of a float8 KV cache; None: the checkpoint's,
            or one per token and head.
        num_blocks: KV blocks; None: as many as fit in memory.
        max_num_seqs: rows of the persistent batch.
        max_num_batched_tokens: maximum tokens of a step; a GPU reserves memory for them.
        max_logprobs: maximum log probabilities of a position; -1: all of the vocabulary.
        enable_prefix_caching: a model with recurrent states stores snapshots of them.
        num_threads: threads of the model; None: one a core.
        attention_backend: triton, xformers or torch; None: the device's default.
        gpu_memory_utilization: share of the GPU's memory that may be used, 0 to 1.
        enforce_eager: capture no CUDA graphs.
        max_seq_len_to_capture: steps with longer sequences use no CUDA graph; None: no limit.
        cpu_offload_gb: GiB of weights that stay in the host's memory.
        conservative_dry_run: count all memory that the driver reports as used when measuring.
        given_gpu_options: GPU options that the user set; a worker on a CPU logs that they have no
            effect.
        speculation: None: no speculation.
        max_forced_tokens: tokens that a sequence with a grammar may append in a step where the
            grammar forces them; 0: one token a step.
        host_kv_bytes: host memory for KV blocks evicted from the device; 0: no host tier.
        host_kv_may_shrink: the host tier takes less if less memory is free; False: the worker does
            not start then.
        num_local_workers: workers on this machine, which share its free memory.
        kv_disk_path: directory for KV blocks evicted from the host tier; None: no disk tier.
        kv_disk_bytes: maximum bytes of the files in it.
        lazy_loads: a step that loads blocks begins once those of its first layers have arrived.
        license: None: the worker needs no license.
        admin_listen: address of probes and metrics (`unix:/path` or `host:port`); None: none.
        logits_processors: processors to load, `module:class`, or classes in the same process.
    """

    model: ModelConfig
    scheduler: str = ""
    tls: TlsConfig | None = None
    name: str = "worker-0"
    device: str = "cpu"
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    quantization_param_path: str | None = None
    num_blocks: int | None = None
    max_num_seqs: int = 256
    max_logprobs: int = 20
    enable_prefix_caching: bool = True
    num_threads: int | None = None
    max_num_batched_tokens: int = 2048
    attention_backend: str | None = None
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    max_seq_len_to_capture: int | None = None
    cpu_offload_gb: float = 0.0
    conservative_dry_run: bool = False
    given_gpu_options: tuple[str, ...] = ()
    speculation: SpeculationConfig | None = None
    max_forced_tokens: int = DEFAULT_FORCED_TOKENS
    host_kv_bytes: int = 0
    host_kv_may_shrink: bool = False
    num_local_workers: int = 1
    kv_disk_path: str | None = None
    kv_disk_bytes: int = 16 * 2**30
    lazy_loads: bool = True
    license: LicenseConfig | None = None
    admin_listen: str | None = None
    logits_processors: tuple[str | type, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """One CPU draft worker.

    Attributes:
        model: the draft model; int8 unless it has another quantization.
        scheduler: address to dial (`unix:/path` or `host:port`).
        tls: certificates for the scheduler; None: a connection without TLS.
        backend: kernels (our own) or ipex.
        num_threads: threads of the model; None: one a core.
        max_num_seqs: maximum sequences whose KV it keeps.
        num_blocks: KV blocks; None: as many as fit in memory.
        admin_listen: address of probes and metrics (`unix:/path` or `host:port`); None: none.
    """

    model: ModelConfig
    scheduler: str = ""
    tls: TlsConfig | None = None
    name: str = "drafter-0"
    backend: str = "kernels"
    num_threads: int | None = None
    max_num_seqs: int = 256
    num_blocks: int | None = None
    admin_listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The scheduler.

    Attributes:
        listen: address to serve gRPC on (`unix:/path` or `host:port`).
        tls: certificates that callers must match; None: connections without TLS, from any caller.
        max_num_seqs: maximum sequences of a step; a worker may have a lower limit.
        max_num_batched_tokens: token budget of a step.
        long_prefill_token_threshold: maximum tokens of a step for a prompt that does not fit in
            the step, while shorter prompts wait; 0: no limit; None: a quarter of the budget.
        max_waiting_requests, max_waiting_tokens: limits of the queue, in requests and prompt
            tokens; more are rejected with 429.
        run_ahead: send plan N+1 before output N has arrived.
        log_stats: log a throughput line every few seconds.
        step_timeout: seconds after which a worker is lost if its step has not ended, and the step
            takes more than ten times as long as its longest one before.
        worker_timeout: heartbeat timeout: seconds without a message after which a worker or a
            gateway is lost; workers send a heartbeat every 2 s.
        worker_drain_timeout: seconds that the sequences of a draining worker have to end; then
            they continue on other workers.
        num_speculative_tokens: draft tokens of a sequence in a step, requested from draft workers.
        speculative_max_model_len: maximum length of a sequence with speculation; None: no limit.
        speculative_disable_by_batch_size: maximum requests with speculation; None: no limit.
        offload_min_accesses: a block evicted from the device goes to the host tier if at least
            this number of sequences used it.
        log_hit_counts: log the hits of each tier every 100 blocks.
        max_cached_device_blocks: maximum unreferenced blocks that the device keeps; None: all.
        max_pinned_share: maximum share of the device's blocks that requests may pin, 0 to 1.
        swaps_preempted: blocks of preempted sequences go to the host tier when they are evicted,
            regardless of `offload_min_accesses`.
        prompt_delay_factor: while sequences run, a prompt waits this factor times the duration of
            the last step with prompts, so that prompts are batched.
        redis: registry through which gateways find the scheduler; None: they know its address.
        advertise: address to register there; None: the scheduler is not registered.
        admin_listen: address of probes and metrics (`unix:/path` or `host:port`); None: none.
    """

    listen: str = ""
    tls: TlsConfig | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int | None = None
    max_waiting_requests: int = 4096
    max_waiting_tokens: int = 2**24
    enable_prefix_caching: bool = True
    run_ahead: bool = True
    log_stats: bool = True
    step_timeout: float = 120.0
    worker_timeout: float = 10.0
    worker_drain_timeout: float = 30.0
    num_speculative_tokens: int = DEFAULT_SPECULATIVE_TOKENS
    speculative_max_model_len: int | None = None
    speculative_disable_by_batch_size: int | None = None
    offload_min_accesses: int = 1
    log_hit_counts: bool = False
    max_cached_device_blocks: int | None = None
    max_pinned_share: float = 0.5
    swaps_preempted: bool = False
    prompt_delay_factor: float = 0.0
    redis: RedisConfig | None = None
    advertise: str | None = None
    admin_listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway.

    Attributes:
        scheduler: address of the scheduler, or several separated by commas; empty: the schedulers
            of the model in the Redis registry.
        tls: certificates for the scheduler and for callers of the Inference service; None: both
            without TLS.
        uds: Unix socket to serve HTTP on instead of host and port.
        grpc_listen: address to serve the Inference service on; None: not served.
        admin_listen: address of probes, drain and metrics (`unix:/path` or `host:port`); None:
            none. With an admin port, metrics are not on the public port.
        min_ready_workers: the gateway is ready while at least this number of workers is attached;
            1: from the first worker on.
        api_keys: keys that clients may present.
        api_key_file: JSON or YAML list of keys and their owners' limits; without it and `api_keys`
            requests need no key.
        share_prefix_cache: requests of different keys share cached prefixes.
        chat_template: a Jinja template or the path of one; None: the model's own.
        trust_request_chat_template: requests may have their own template.
        enable_auto_tool_choice: chat requests may have tools; needs `tool_call_parser`.
        tool_call_parser: format of the model's tool calls; None: calls are not parsed.
        tool_parser_plugin: file or module with further formats of tool calls.
        reasoning_parser: format of the model's reasoning; None: it is content.
        reasoning_parser_plugin: file or module with further formats of reasoning.
        logits_processor_pattern: regular expression of the loaded logits processors that run only
            for requests that name them; None: all run for every request.
        max_connections: concurrent HTTP connections; one more gets a 503. The limit on file
            descriptors lowers it.
        max_body_bytes: maximum request body; a larger one is rejected with 413.
        body_timeout: seconds within which a request body must have arrived, else 408.
        queue_timeout: seconds that a request may wait to run, else 504.
        ping_interval: seconds without an event after which a stream carries a comment.
        stall_timeout: seconds after which a client that reads nothing is disconnected.
        drain_timeout: seconds that running requests get to finish after SIGTERM.
        redis: state shared with other gateways; None: nothing is shared.
        redis_keys: API keys are in Redis only.
    """

    model: ModelConfig
    scheduler: str
    tls: TlsConfig | None = None
    host: str = "0.0.0.0"
    port: int = 8000
    uds: str | None = None
    grpc_listen: str | None = None
    admin_listen: str | None = None
    min_ready_workers: int = 1
    api_keys: tuple[str, ...] = ()
    api_key_file: str | None = None
    share_prefix_cache: bool = False
    chat_template: str | None = None
    trust_request_chat_template: bool = False
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    tool_parser_plugin: str | None = None
    reasoning_parser: str | None = None
    reasoning_parser_plugin: str | None = None
    logits_processor_pattern: str | None = None
    response_role: str = "assistant"
    return_tokens_as_token_ids: bool = False
    allowed_origins: tuple[str, ...] = ("*",)
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    root_path: str = ""
    uvicorn_log_level: str = "warning"
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = 0
    max_connections: int = 8192
    max_body_bytes: int = 32 * 2**20
    body_timeout: float = 60.0
    queue_timeout: float = 600.0
    ping_interval: float = 15.0
    stall_timeout: float = 30.0
    drain_timeout: float = 30.0
    log_requests: bool = False
    max_log_len: int | None = None
    middleware: tuple[str, ...] = field(default=())
    redis: RedisConfig | None = None
    redis_keys: bool = False

    @property
    def schedulers(self) -> tuple[str, ...]:
        """The addresses of `scheduler`."""
        return tuple(address for address in self.scheduler.split(",") if address)

    @property
    def has_admin_port(self) -> bool:
        return self.admin_listen is not None and not self.admin_listen.startswith("unix:")
