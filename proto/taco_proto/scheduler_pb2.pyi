from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EarlyStopping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_IF_WORSE: _ClassVar[EarlyStopping]
    STOP_IF_COMPLETE: _ClassVar[EarlyStopping]
    STOP_NEVER: _ClassVar[EarlyStopping]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUNNING: _ClassVar[FinishReason]
    STOP: _ClassVar[FinishReason]
    LENGTH: _ClassVar[FinishReason]
    ABORTED: _ClassVar[FinishReason]

class LicenseState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LICENSED: _ClassVar[LicenseState]
    LICENSE_ASKED: _ClassVar[LicenseState]
    UNLICENSED: _ClassVar[LicenseState]

class RowErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_ERROR_UNKNOWN: _ClassVar[RowErrorCode]
    INVALID_LOGITS: _ClassVar[RowErrorCode]
    NO_ALLOWED_TOKEN: _ClassVar[RowErrorCode]
    GRAMMAR_LIMIT: _ClassVar[RowErrorCode]
    PROCESSOR_FAILED: _ClassVar[RowErrorCode]
    INVALID_ARGUMENTS: _ClassVar[RowErrorCode]
STOP_IF_WORSE: EarlyStopping
STOP_IF_COMPLETE: EarlyStopping
STOP_NEVER: EarlyStopping
RUNNING: FinishReason
STOP: FinishReason
LENGTH: FinishReason
ABORTED: FinishReason
LICENSED: LicenseState
LICENSE_ASKED: LicenseState
UNLICENSED: LicenseState
ROW_ERROR_UNKNOWN: RowErrorCode
INVALID_LOGITS: RowErrorCode
NO_ALLOWED_TOKEN: RowErrorCode
GRAMMAR_LIMIT: RowErrorCode
PROCESSOR_FAILED: RowErrorCode
INVALID_ARGUMENTS: RowErrorCode

class GatewayMessage(_message.Message):
    __slots__ = ("hello", "submit", "cancel")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    submit: Submit
    cancel: Cancel
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("protocol_version", "name")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    name: str
    def __init__(self, protocol_version: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "no_repeat_ngram_size", "logit_bias_token_ids", "logit_bias_values", "allowed_token_ids", "num_bad_word_tokens", "bad_word_token_ids", "logits_processors", "extra_args", "logprob_token_ids", "num_beams", "length_penalty", "early_stopping")
    N_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_BAD_WORD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORD_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_ARGS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    n: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    max_tokens: int
    min_tokens: int
    logprobs: int
    prompt_logprobs: int
    no_repeat_ngram_size: int
    logit_bias_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logit_bias_values: _containers.RepeatedScalarFieldContainer[float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_bad_word_tokens: _containers.RepeatedScalarFieldContainer[int]
    bad_word_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    extra_args: str
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    def __init__(self, n: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., no_repeat_ngram_size: _Optional[int] = ..., logit_bias_token_ids: _Optional[_Iterable[int]] = ..., logit_bias_values: _Optional[_Iterable[float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., num_bad_word_tokens: _Optional[_Iterable[int]] = ..., bad_word_token_ids: _Optional[_Iterable[int]] = ..., logits_processors: _Optional[_Iterable[str]] = ..., extra_args: _Optional[str] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., num_beams: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[_Union[EarlyStopping, str]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("handle", "request_id", "token_ids", "emitted_token_ids", "sampling", "priority", "adapter", "cache_salt", "tenant", "pins", "prompt_cache_key", "quota_charged", "timeout_seconds", "finished_indexes", "grammar_hash", "grammar_text")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CACHE_KEY_FIELD_NUMBER: _ClassVar[int]
    QUOTA_CHARGED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_INDEXES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_HASH_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_TEXT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    request_id: str
    token_ids: bytes
    emitted_token_ids: _containers.RepeatedScalarFieldContainer[bytes]
    sampling: Sampling
    priority: int
    adapter: str
    cache_salt: str
    tenant: Tenant
    pins: _containers.RepeatedCompositeFieldContainer[PrefixPin]
    prompt_cache_key: str
    quota_charged: bool
    timeout_seconds: float
    finished_indexes: _containers.RepeatedScalarFieldContainer[int]
    grammar_hash: bytes
    grammar_text: str
    def __init__(self, handle: _Optional[int] = ..., request_id: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., emitted_token_ids: _Optional[_Iterable[bytes]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., priority: _Optional[int] = ..., adapter: _Optional[str] = ..., cache_salt: _Optional[str] = ..., tenant: _Optional[_Union[Tenant, _Mapping]] = ..., pins: _Optional[_Iterable[_Union[PrefixPin, _Mapping]]] = ..., prompt_cache_key: _Optional[str] = ..., quota_charged: _Optional[bool] = ..., timeout_seconds: _Optional[float] = ..., finished_indexes: _Optional[_Iterable[int]] = ..., grammar_hash: _Optional[bytes] = ..., grammar_text: _Optional[str] = ...) -> None: ...

class PrefixPin(_message.Message):
    __slots__ = ("num_tokens", "seconds")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    seconds: float
    def __init__(self, num_tokens: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("name", "weight", "max_requests_per_minute", "max_tokens_per_minute", "max_concurrent_requests")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    max_requests_per_minute: int
    max_tokens_per_minute: int
    max_concurrent_requests: int
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., max_requests_per_minute: _Optional[int] = ..., max_tokens_per_minute: _Optional[int] = ..., max_concurrent_requests: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("handles", "indexes")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class SchedulerMessage(_message.Message):
    __slots__ = ("model", "outputs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    model: ModelInfo
    outputs: OutputBatch
    def __init__(self, model: _Optional[_Union[ModelInfo, _Mapping]] = ..., outputs: _Optional[_Union[OutputBatch, _Mapping]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model", "max_model_len", "vocab_size", "eos_token_ids", "block_size", "num_blocks", "max_logprobs", "default_sampling", "protocol_version", "ready", "license_problem", "draining", "logits_processors", "adapters")
    class DefaultSamplingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LICENSE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_size: int
    num_blocks: int
    max_logprobs: int
    default_sampling: _containers.ScalarMap[str, float]
    protocol_version: int
    ready: bool
    license_problem: str
    draining: bool
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    adapters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_logprobs: _Optional[int] = ..., default_sampling: _Optional[_Mapping[str, float]] = ..., protocol_version: _Optional[int] = ..., ready: _Optional[bool] = ..., license_problem: _Optional[str] = ..., draining: _Optional[bool] = ..., logits_processors: _Optional[_Iterable[str]] = ..., adapters: _Optional[_Iterable[str]] = ...) -> None: ...

class LogprobColumns(_message.Message):
    __slots__ = ("num_entries", "token_ids", "logprobs", "ranks")
    NUM_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    num_entries: bytes
    token_ids: bytes
    logprobs: bytes
    ranks: bytes
    def __init__(self, num_entries: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., ranks: _Optional[bytes] = ...) -> None: ...

class OutputBatch(_message.Message):
    __slots__ = ("handles", "indexes", "num_tokens", "token_ids", "finish_reasons", "stop_token_ids", "num_cached_tokens", "logprobs", "prompt_logprob_handles", "prompt_logprob_positions", "prompt_logprobs", "error_handles", "error_codes", "error_messages", "error_retry_after", "error_reasons", "started_handles", "queue_seconds")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROB_HANDLES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROB_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERROR_HANDLES_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODES_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ERROR_RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASONS_FIELD_NUMBER: _ClassVar[int]
    STARTED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reasons: _containers.RepeatedScalarFieldContainer[int]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_cached_tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: LogprobColumns
    prompt_logprob_handles: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprob_positions: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: LogprobColumns
    error_handles: _containers.RepeatedScalarFieldContainer[int]
    error_codes: _containers.RepeatedScalarFieldContainer[int]
    error_messages: _containers.RepeatedScalarFieldContainer[str]
    error_retry_after: _containers.RepeatedScalarFieldContainer[int]
    error_reasons: _containers.RepeatedScalarFieldContainer[str]
    started_handles: _containers.RepeatedScalarFieldContainer[int]
    queue_seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., indexes: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reasons: _Optional[_Iterable[int]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., num_cached_tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[LogprobColumns, _Mapping]] = ..., prompt_logprob_handles: _Optional[_Iterable[int]] = ..., prompt_logprob_positions: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[_Union[LogprobColumns, _Mapping]] = ..., error_handles: _Optional[_Iterable[int]] = ..., error_codes: _Optional[_Iterable[int]] = ..., error_messages: _Optional[_Iterable[str]] = ..., error_retry_after: _Optional[_Iterable[int]] = ..., error_reasons: _Optional[_Iterable[str]] = ..., started_handles: _Optional[_Iterable[int]] = ..., queue_seconds: _Optional[_Iterable[float]] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("hello", "output", "heartbeat", "store_report", "leaving", "announced", "grammar_ready")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STORE_REPORT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_READY_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    output: StepOutput
    heartbeat: Heartbeat
    store_report: StoreReport
    leaving: Leaving
    announced: StepAnnounced
    grammar_ready: GrammarReady
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., output: _Optional[_Union[StepOutput, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., store_report: _Optional[_Union[StoreReport, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., announced: _Optional[_Union[StepAnnounced, _Mapping]] = ..., grammar_ready: _Optional[_Union[GrammarReady, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("protocol_version", "name", "model", "max_model_len", "vocab_size", "eos_token_ids", "block_size", "num_blocks", "max_num_seqs", "max_logprobs", "default_sampling", "max_draft_tokens", "drafts_itself", "num_host_blocks", "num_disk_blocks", "license", "max_num_batched_tokens", "needs_history", "max_forced_tokens", "logits_processors", "adapters", "is_recurrent", "num_state_snapshots")
    class DefaultSamplingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_ITSELF_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_DISK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LICENSE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_HISTORY_FIELD_NUMBER: _ClassVar[int]
    MAX_FORCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    IS_RECURRENT_FIELD_NUMBER: _ClassVar[int]
    NUM_STATE_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    name: str
    model: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_logprobs: int
    default_sampling: _containers.ScalarMap[str, float]
    max_draft_tokens: int
    drafts_itself: bool
    num_host_blocks: int
    num_disk_blocks: int
    license: WorkerLicense
    max_num_batched_tokens: int
    needs_history: bool
    max_forced_tokens: int
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    adapters: _containers.RepeatedScalarFieldContainer[str]
    is_recurrent: bool
    num_state_snapshots: int
    def __init__(self, protocol_version: _Optional[int] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_logprobs: _Optional[int] = ..., default_sampling: _Optional[_Mapping[str, float]] = ..., max_draft_tokens: _Optional[int] = ..., drafts_itself: _Optional[bool] = ..., num_host_blocks: _Optional[int] = ..., num_disk_blocks: _Optional[int] = ..., license: _Optional[_Union[WorkerLicense, _Mapping]] = ..., max_num_batched_tokens: _Optional[int] = ..., needs_history: _Optional[bool] = ..., max_forced_tokens: _Optional[int] = ..., logits_processors: _Optional[_Iterable[str]] = ..., adapters: _Optional[_Iterable[str]] = ..., is_recurrent: _Optional[bool] = ..., num_state_snapshots: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("license",)
    LICENSE_FIELD_NUMBER: _ClassVar[int]
    license: WorkerLicense
    def __init__(self, license: _Optional[_Union[WorkerLicense, _Mapping]] = ...) -> None: ...

class WorkerLicense(_message.Message):
    __slots__ = ("state", "reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: LicenseState
    reason: str
    def __init__(self, state: _Optional[_Union[LicenseState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class StepAnnounced(_message.Message):
    __slots__ = ("epoch", "step_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerCommand(_message.Message):
    __slots__ = ("plan", "store", "go_ahead", "grammars")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    GO_AHEAD_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    plan: StepPlan
    store: StoreCommand
    go_ahead: GoAhead
    grammars: GrammarCommand
    def __init__(self, plan: _Optional[_Union[StepPlan, _Mapping]] = ..., store: _Optional[_Union[StoreCommand, _Mapping]] = ..., go_ahead: _Optional[_Union[GoAhead, _Mapping]] = ..., grammars: _Optional[_Union[GrammarCommand, _Mapping]] = ...) -> None: ...

class GrammarCommand(_message.Message):
    __slots__ = ("compiled_hashes", "compiled_texts", "released")
    COMPILED_HASHES_FIELD_NUMBER: _ClassVar[int]
    COMPILED_TEXTS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    compiled_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    compiled_texts: _containers.RepeatedScalarFieldContainer[str]
    released: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, compiled_hashes: _Optional[_Iterable[bytes]] = ..., compiled_texts: _Optional[_Iterable[str]] = ..., released: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GrammarReady(_message.Message):
    __slots__ = ("hash", "error")
    HASH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    hash: bytes
    error: str
    def __init__(self, hash: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...

class GoAhead(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SamplingColumns(_message.Message):
    __slots__ = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "min_tokens", "logprobs", "prompt_logprobs", "no_repeat_ngram_size", "num_stop_token_ids", "stop_token_ids", "num_logit_bias", "logit_bias_token_ids", "logit_bias_values", "num_allowed_token_ids", "allowed_token_ids", "num_bad_words", "num_bad_word_tokens", "bad_word_token_ids", "num_logits_processors", "logits_processors", "extra_args", "num_logprob_token_ids", "logprob_token_ids", "use_beam_search")
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    NUM_ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    NUM_BAD_WORD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORD_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_ARGS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    USE_BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    presence_penalty: _containers.RepeatedScalarFieldContainer[float]
    frequency_penalty: _containers.RepeatedScalarFieldContainer[float]
    repetition_penalty: _containers.RepeatedScalarFieldContainer[float]
    temperature: _containers.RepeatedScalarFieldContainer[float]
    top_p: _containers.RepeatedScalarFieldContainer[float]
    top_k: _containers.RepeatedScalarFieldContainer[int]
    min_p: _containers.RepeatedScalarFieldContainer[float]
    seed: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: _containers.RepeatedScalarFieldContainer[bool]
    min_tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: _containers.RepeatedScalarFieldContainer[int]
    no_repeat_ngram_size: _containers.RepeatedScalarFieldContainer[int]
    num_stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_logit_bias: _containers.RepeatedScalarFieldContainer[int]
    logit_bias_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logit_bias_values: _containers.RepeatedScalarFieldContainer[float]
    num_allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_bad_words: _containers.RepeatedScalarFieldContainer[int]
    num_bad_word_tokens: _containers.RepeatedScalarFieldContainer[int]
    bad_word_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_logits_processors: _containers.RepeatedScalarFieldContainer[int]
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    extra_args: _containers.RepeatedScalarFieldContainer[str]
    num_logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    use_beam_search: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, presence_penalty: _Optional[_Iterable[float]] = ..., frequency_penalty: _Optional[_Iterable[float]] = ..., repetition_penalty: _Optional[_Iterable[float]] = ..., temperature: _Optional[_Iterable[float]] = ..., top_p: _Optional[_Iterable[float]] = ..., top_k: _Optional[_Iterable[int]] = ..., min_p: _Optional[_Iterable[float]] = ..., seed: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[_Iterable[bool]] = ..., min_tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[_Iterable[int]] = ..., no_repeat_ngram_size: _Optional[_Iterable[int]] = ..., num_stop_token_ids: _Optional[_Iterable[int]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., num_logit_bias: _Optional[_Iterable[int]] = ..., logit_bias_token_ids: _Optional[_Iterable[int]] = ..., logit_bias_values: _Optional[_Iterable[float]] = ..., num_allowed_token_ids: _Optional[_Iterable[int]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., num_bad_words: _Optional[_Iterable[int]] = ..., num_bad_word_tokens: _Optional[_Iterable[int]] = ..., bad_word_token_ids: _Optional[_Iterable[int]] = ..., num_logits_processors: _Optional[_Iterable[int]] = ..., logits_processors: _Optional[_Iterable[str]] = ..., extra_args: _Optional[_Iterable[str]] = ..., num_logprob_token_ids: _Optional[_Iterable[int]] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., use_beam_search: _Optional[_Iterable[bool]] = ...) -> None: ...

class JoinedSequences(_message.Message):
    __slots__ = ("slots", "num_prompt_tokens", "num_tokens", "num_computed_tokens", "token_ids", "num_omitted_tokens", "num_blocks", "block_ids", "sampling", "cache_salts", "grammar_hashes", "adapters", "state_snapshots")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_OMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALTS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_HASHES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    STATE_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_computed_tokens: _containers.RepeatedScalarFieldContainer[int]
    token_ids: bytes
    num_omitted_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_blocks: _containers.RepeatedScalarFieldContainer[int]
    block_ids: bytes
    sampling: SamplingColumns
    cache_salts: _containers.RepeatedScalarFieldContainer[str]
    grammar_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    adapters: _containers.RepeatedScalarFieldContainer[str]
    state_snapshots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slots: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_computed_tokens: _Optional[_Iterable[int]] = ..., token_ids: _Optional[bytes] = ..., num_omitted_tokens: _Optional[_Iterable[int]] = ..., num_blocks: _Optional[_Iterable[int]] = ..., block_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[SamplingColumns, _Mapping]] = ..., cache_salts: _Optional[_Iterable[str]] = ..., grammar_hashes: _Optional[_Iterable[bytes]] = ..., adapters: _Optional[_Iterable[str]] = ..., state_snapshots: _Optional[_Iterable[int]] = ...) -> None: ...

class PlannedDrafts(_message.Message):
    __slots__ = ("slots", "num_tokens", "num_drafts", "token_ids")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_drafts: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slots: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_drafts: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class BlockCopies(_message.Message):
    __slots__ = ("offload_sources", "offload_targets", "load_sources", "load_targets")
    OFFLOAD_SOURCES_FIELD_NUMBER: _ClassVar[int]
    OFFLOAD_TARGETS_FIELD_NUMBER: _ClassVar[int]
    LOAD_SOURCES_FIELD_NUMBER: _ClassVar[int]
    LOAD_TARGETS_FIELD_NUMBER: _ClassVar[int]
    offload_sources: _containers.RepeatedScalarFieldContainer[int]
    offload_targets: _containers.RepeatedScalarFieldContainer[int]
    load_sources: _containers.RepeatedScalarFieldContainer[int]
    load_targets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offload_sources: _Optional[_Iterable[int]] = ..., offload_targets: _Optional[_Iterable[int]] = ..., load_sources: _Optional[_Iterable[int]] = ..., load_targets: _Optional[_Iterable[int]] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("epoch", "step_id", "left_slots", "joined", "appended_slots", "appended_blocks", "slots", "num_tokens", "max_drafts", "drafts", "copies", "is_announced", "saved_slots", "saved_positions", "saved_snapshots")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    LEFT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    APPENDED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    APPENDED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    IS_ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    SAVED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SAVED_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SAVED_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    left_slots: _containers.RepeatedScalarFieldContainer[int]
    joined: JoinedSequences
    appended_slots: _containers.RepeatedScalarFieldContainer[int]
    appended_blocks: _containers.RepeatedScalarFieldContainer[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    max_drafts: _containers.RepeatedScalarFieldContainer[int]
    drafts: PlannedDrafts
    copies: BlockCopies
    is_announced: bool
    saved_slots: _containers.RepeatedScalarFieldContainer[int]
    saved_positions: _containers.RepeatedScalarFieldContainer[int]
    saved_snapshots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., left_slots: _Optional[_Iterable[int]] = ..., joined: _Optional[_Union[JoinedSequences, _Mapping]] = ..., appended_slots: _Optional[_Iterable[int]] = ..., appended_blocks: _Optional[_Iterable[int]] = ..., slots: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., max_drafts: _Optional[_Iterable[int]] = ..., drafts: _Optional[_Union[PlannedDrafts, _Mapping]] = ..., copies: _Optional[_Union[BlockCopies, _Mapping]] = ..., is_announced: _Optional[bool] = ..., saved_slots: _Optional[_Iterable[int]] = ..., saved_positions: _Optional[_Iterable[int]] = ..., saved_snapshots: _Optional[_Iterable[int]] = ...) -> None: ...

class StepOutput(_message.Message):
    __slots__ = ("epoch", "step_id", "slots", "token_ids", "logprobs", "prompt_logprob_slots", "prompt_logprob_positions", "prompt_logprobs", "error", "num_tokens", "num_drafts", "num_invalid_drafts", "row_error_slots", "row_error_codes", "row_error_messages")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROB_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROB_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_INVALID_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    ROW_ERROR_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ROW_ERROR_CODES_FIELD_NUMBER: _ClassVar[int]
    ROW_ERROR_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: LogprobColumns
    prompt_logprob_slots: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprob_positions: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: LogprobColumns
    error: str
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_drafts: _containers.RepeatedScalarFieldContainer[int]
    num_invalid_drafts: int
    row_error_slots: _containers.RepeatedScalarFieldContainer[int]
    row_error_codes: _containers.RepeatedScalarFieldContainer[int]
    row_error_messages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[LogprobColumns, _Mapping]] = ..., prompt_logprob_slots: _Optional[_Iterable[int]] = ..., prompt_logprob_positions: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[_Union[LogprobColumns, _Mapping]] = ..., error: _Optional[str] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_drafts: _Optional[_Iterable[int]] = ..., num_invalid_drafts: _Optional[int] = ..., row_error_slots: _Optional[_Iterable[int]] = ..., row_error_codes: _Optional[_Iterable[int]] = ..., row_error_messages: _Optional[_Iterable[str]] = ...) -> None: ...

class StoredBlocks(_message.Message):
    __slots__ = ("keys", "parents", "adapters", "cache_salts", "token_ids")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    parents: _containers.RepeatedScalarFieldContainer[bytes]
    adapters: _containers.RepeatedScalarFieldContainer[str]
    cache_salts: _containers.RepeatedScalarFieldContainer[str]
    token_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ..., parents: _Optional[_Iterable[bytes]] = ..., adapters: _Optional[_Iterable[str]] = ..., cache_salts: _Optional[_Iterable[str]] = ..., token_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StoreCommand(_message.Message):
    __slots__ = ("writes", "write_sources", "reads", "read_targets", "deletes")
    WRITES_FIELD_NUMBER: _ClassVar[int]
    WRITE_SOURCES_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    READ_TARGETS_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    writes: StoredBlocks
    write_sources: _containers.RepeatedScalarFieldContainer[int]
    reads: _containers.RepeatedScalarFieldContainer[bytes]
    read_targets: _containers.RepeatedScalarFieldContainer[int]
    deletes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, writes: _Optional[_Union[StoredBlocks, _Mapping]] = ..., write_sources: _Optional[_Iterable[int]] = ..., reads: _Optional[_Iterable[bytes]] = ..., read_targets: _Optional[_Iterable[int]] = ..., deletes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StoreReport(_message.Message):
    __slots__ = ("found", "is_complete", "written", "read", "failed", "read_seconds")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    READ_SECONDS_FIELD_NUMBER: _ClassVar[int]
    found: StoredBlocks
    is_complete: bool
    written: _containers.RepeatedScalarFieldContainer[bytes]
    read: _containers.RepeatedScalarFieldContainer[bytes]
    failed: _containers.RepeatedScalarFieldContainer[bytes]
    read_seconds: float
    def __init__(self, found: _Optional[_Union[StoredBlocks, _Mapping]] = ..., is_complete: _Optional[bool] = ..., written: _Optional[_Iterable[bytes]] = ..., read: _Optional[_Iterable[bytes]] = ..., failed: _Optional[_Iterable[bytes]] = ..., read_seconds: _Optional[float] = ...) -> None: ...

class DrafterMessage(_message.Message):
    __slots__ = ("hello", "reply", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: DrafterHello
    reply: DraftReply
    heartbeat: Heartbeat
    def __init__(self, hello: _Optional[_Union[DrafterHello, _Mapping]] = ..., reply: _Optional[_Union[DraftReply, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class DrafterHello(_message.Message):
    __slots__ = ("protocol_version", "name", "model", "vocab_size", "max_model_len")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    name: str
    model: str
    vocab_size: int
    max_model_len: int
    def __init__(self, protocol_version: _Optional[int] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("request_id", "left", "sequences", "num_known", "num_tokens", "token_ids", "num_drafts")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_KNOWN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    left: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    num_known: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    token_ids: bytes
    num_drafts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[int] = ..., left: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[int]] = ..., num_known: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., token_ids: _Optional[bytes] = ..., num_drafts: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftReply(_message.Message):
    __slots__ = ("request_id", "sequences", "num_drafts", "token_ids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    num_drafts: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., num_drafts: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("num_running", "num_waiting", "kv_cache_usage", "num_free_blocks", "num_blocks", "num_workers", "prometheus")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PROMETHEUS_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_free_blocks: int
    num_blocks: int
    num_workers: int
    prometheus: bytes
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., kv_cache_usage: _Optional[float] = ..., num_free_blocks: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_workers: _Optional[int] = ..., prometheus: _Optional[bytes] = ...) -> None: ...
