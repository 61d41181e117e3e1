"""Configuration of each service, parsed once at the edge and never changed afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROTOCOL_VERSION = 3
# Largest message of the Scheduler service; all sides must agree on it.
MAX_MESSAGE_BYTES = 64 * 2**20
# What a scheduler that is told to stop has for its running requests and for what goes to disk.
DRAIN_SECONDS = 30.0
# Draft tokens of a sequence in a step.
DEFAULT_SPECULATIVE_TOKENS = 5
MAX_SPECULATIVE_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model to run and how to load it.

    Attributes:
        model: a directory that holds config.json, or a hub id.
        served_model_names: names that clients may use; the first one stands in responses.
        tokenizer: directory or hub id of the tokenizer; None: the model's own.
        ignore_patterns: files of the hub that are not downloaded.
        dtype: auto, half, float16, bfloat16, float or float32.
        quantization: int8 (weights by column, activations by token) or None.
        max_model_len: longest sequence (prompt and output) in tokens; None: the model's own limit.
        rope_scaling, rope_theta: replace what the model's config says.
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
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
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
        password_file: file with the password, read at each connection; None: what the URL says.
        timeout: seconds after which a slow answer is none.
    """

    url: str = field(repr=False)
    password_file: str | None = None
    timeout: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The files of mutual TLS with other services, in PEM; see `taco_common.tls`.

    Attributes:
        ca_file: the authorities whose certificates are believed.
        cert_file, key_file: the own certificate, which names the service's role, and its key.
    """

    ca_file: str
    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How a worker drafts and verifies several tokens a step.

    Attributes:
        lookahead_config_dir: directory of lookahead_cache_config.json; None: no lookahead cache.
        lookahead_ignores_prompts: the lookahead cache learns answers alone.
        lookahead_memory_utilization: share of the machine's memory that it may take; None: what
            its configuration says.
        ngram_max, ngram_min: longest and shortest match of [ngram] prompt lookup; 0: none.
        heads: a directory or hub id of Medusa or EAGLE heads; None: no heads.
        num_speculative_tokens: drafts of a sequence in a step; None: the drafter's own number.
        acceptance_method: rejection_sampler (exact) or typical_acceptance_sampler.
        posterior_threshold, posterior_alpha: of the latter: a draft is accepted that is likelier
            than the threshold, or than alpha * exp(-entropy).
        disable_logprobs: give no log probabilities of output tokens, whoever asks.
    """

    lookahead_config_dir: str | None = None
    lookahead_ignores_prompts: bool = False
    lookahead_memory_utilization: float | None = None
    ngram_max: int = 0
    ngram_min: int = 0
    heads: str | None = None
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
        address: of the license server; empty: it is at one of its two default addresses.
        only_if_found: no license is needed where none of the addresses resolves at the start.
        start_seconds: how long a server has for its first answer before it counts as away.
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
        tls: the link to the scheduler, and to a license server at an https address; None: it is
            in plaintext.
        block_size: tokens a KV block.
        device: cpu, cuda, cuda:N, or auto, which is a GPU where there is one.
        kv_cache_dtype: auto (the model's); float32, bfloat16 or int8 on a CPU, fp8 on a GPU.
        num_blocks: KV blocks; None: as many as memory allows.
        max_num_seqs: rows of the persistent batch.
        max_num_batched_tokens: the most tokens of a step, for which memory is kept on a GPU.
        num_threads: threads that the model may use; None: one for each core.
        attention_backend: triton, xformers or torch; None: the device's own.
        gpu_memory_utilization: share of the GPU's memory that may be in use.
        enforce_eager: capture no CUDA graphs.
        max_seq_len_to_capture: steps with longer sequences use no CUDA graph; None: no limit.
        cpu_offload_gb: GiB of weights that stay in the host's memory.
        conservative_dry_run: count all that the driver says is gone when memory is measured.
        given_gpu_options: the names of those options of GPUs that the user gave; a worker on a CPU
            logs that they have no effect.
        speculation: None: no drafts are made or verified.
        host_kv_bytes: memory for KV blocks that leave the device; 0: there is no host tier.
        host_kv_may_shrink: the host tier takes less where so much memory is not free; else the
            worker does not start.
        num_local_workers: workers of this machine, which share its free memory.
        kv_disk_path: directory for KV blocks that leave the host tier; None: there is no disk tier.
        kv_disk_bytes: the most that the files in it may take.
        lazy_loads: a step that loads blocks begins when those of its first layers are there.
        license: None: it needs none.
        admin_listen: address of probes and metrics (`unix:/path` or `host:port`); None: none.
    """

    model: ModelConfig
    scheduler: str = ""
    tls: TlsConfig | None = None
    name: str = "worker-0"
    device: str = "cpu"
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    num_blocks: int | None = None
    max_num_seqs: int = 256
    max_logprobs: int = 20
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
    host_kv_bytes: int = 0
    host_kv_may_shrink: bool = False
    num_local_workers: int = 1
    kv_disk_path: str | None = None
    kv_disk_bytes: int = 16 * 2**30
    lazy_loads: bool = True
    license: LicenseConfig | None = None
    admin_listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """One CPU draft worker.

    Attributes:
        model: the draft model. Its quantization is int8 unless it says otherwise.
        scheduler: address to dial (`unix:/path` or `host:port`).
        tls: the link to the scheduler; None: it is in plaintext.
        backend: kernels (our own) or ipex.
        num_threads: threads that the model may use; None: one for each core.
        max_num_seqs: sequences whose KV it keeps.
        num_blocks: KV blocks; None: as many as memory allows.
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
        tls: who may dial, by certificate; None: whoever can, in plaintext.
        max_num_seqs: sequences in a step; the worker's own limit holds beside it.
        max_num_batched_tokens: token budget of a step.
        long_prefill_token_threshold: tokens of a step that a prompt which does not fit in the step
            takes before shorter prompts behind it; 0: all of them; None: a quarter of the budget.
        max_waiting_requests, max_waiting_tokens: beyond so many requests, or tokens of their
            prompts, requests are refused with 429.
        run_ahead: send plan N+1 before output N has arrived.
        log_stats: log a throughput line every few seconds.
        step_timeout: a worker is given up when a step takes so many seconds, and ten times as long
            as its longest one before.
        worker_timeout: a worker, or a gateway, is given up when nothing is heard of it for so many
            seconds; workers send a heartbeat every 2 s.
        worker_drain_timeout: seconds in which the sequences of a worker that leaves may end; then
            they go on elsewhere.
        num_speculative_tokens: drafts of a sequence in a step that are asked of a draft worker.
        speculative_max_model_len: longer sequences are not speculated for; None: no limit.
        speculative_disable_by_batch_size: with more requests than that nobody is; None: no limit.
        offload_min_accesses: a block that leaves the device goes to the host tier if so many
            sequences have used it.
        log_hit_counts: log every 100 blocks in which tier they were found.
        max_cached_device_blocks: the most blocks that nobody uses and the device keeps; None: all.
        max_pinned_share: of the device's blocks, that requests may have kept for a time.
        swaps_preempted: what is preempted goes to the host tier when the device gives it up,
            whatever `offload_min_accesses` says.
        prompt_delay_factor: while sequences run, a prompt waits for so many times as long as the
            last step took that computed prompts, so that more of them come together.
        redis: through which gateways find it; None: they are told its address.
        advertise: the address at which they reach it; None: it is not to be found there.
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
        scheduler: address of the scheduler, or several with commas between them; empty: those that
            serve the model and are found through Redis.
        tls: the link to the scheduler, and who may call the Inference service, by certificate;
            None: both are in plaintext.
        uds: Unix socket to serve HTTP on instead of host and port.
        grpc_listen: address to serve the Inference service on; None: not served.
        admin_listen: address of probes, drain and metrics (`unix:/path` or `host:port`); None:
            there is none. With a port of their own, metrics are not on the public one.
        min_ready_workers: with fewer workers the gateway is not ready; 1: until the first one.
        api_keys: keys that clients may present.
        api_key_file: JSON or YAML list of keys and what their owners may have; without it and
            `api_keys` no key is asked for.
        share_prefix_cache: requests of different keys share cached prefixes.
        chat_template: a Jinja template or the path of one; None: the model's own.
        max_connections: HTTP connections served at a time; a further one gets a 503. The limit on
            descriptors lowers it.
        max_body_bytes: a larger request body is refused with 413.
        body_timeout: seconds within which a request body must have arrived, else 408.
        queue_timeout: seconds that a request may wait to run, else 504.
        ping_interval: seconds after which a quiet event stream carries a comment.
        stall_timeout: seconds after which a client that reads nothing is cut off.
        drain_timeout: seconds that running requests get to finish after SIGTERM.
        redis: what is shared with other gateways; None: this one is alone.
        redis_keys: API keys stand in Redis, and nowhere else.
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
