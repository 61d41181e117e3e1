"""Compatibility with vLLM: its arguments that TACO ignores or rejects, in one table.

`LLM`, `EngineArgs` and the command line accept these arguments, so that a program or a command
written for vLLM works with TACO unless it asks for a missing feature:

- A value that asks for nothing, such as `tensor_parallel_size=1` or None, is accepted silently.
- An argument that TACO's design makes needless is ignored with one log line.
- An argument of a missing feature is rejected with an error that names the feature.
"""

import difflib
import functools
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from taco_llm.args.flags import current_names
from taco_proto.errors import ArgumentError
from taco_proto.structured_outputs import BACKENDS

LOGGER = logging.getLogger("taco.llm")

_ANY_ADAPTERS = "All adapters of lora_modules, of any rank, stay in memory, and a step may use all."

Table = TypeVar("Table")


@dataclass(frozen=True, slots=True)
class CompatibilityArgument:
    """One argument of vLLM that TACO does not have.

    Attributes:
        reason: why the argument is ignored, or which feature is missing.
        is_rejected: whether a value that asks for something is an error; if not, it is ignored.
        neutral: values that ask for nothing, besides None (and False for a switch).
        parse: converts the flag's text to the value; None for text.
        is_switch: whether the flag needs no value.
        takes_several: whether several values may follow the flag.
        short: the flag's short form, such as -tp.
        choices: values that are accepted; empty: any.
    """

    reason: str
    is_rejected: bool
    neutral: tuple[object, ...] = ()
    parse: Callable[[str], Any] | None = None
    is_switch: bool = False
    takes_several: bool = False
    short: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        if not self.is_rejected:
            allowed = f" One of {', '.join(self.choices)}." if self.choices else ""
            return f"No effect. {self.reason}{allowed}"
        return f"Not available{self._only()}: {self.reason}"

    def asks_for_something(self, value: object) -> bool:
        if value is None or (self.is_switch and value is False):
            return False
        return not any(type(value) is type(entry) and value == entry for entry in self.neutral)

    def rejection(self, name: str, value: object) -> str:
        """The text of the error."""
        return f"{name}={value!r} is not available{self._only()}: {self.reason}"

    def _only(self) -> str:
        if not self.neutral:
            return ""
        shown = " or ".join(map(repr, self.neutral))
        return f"; only {shown} {'is' if len(self.neutral) == 1 else 'are'}"


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


_TOKENIZER_POOL = "The gateway always tokenizes prompts in threads."
_REMOTE_CODE = "Code inside a checkpoint is never run; TACO has recipes and converts tokenizers."
_ONLY_TEXT = "models generate text; embeddings and scores are not supported"
_PROMPT_ADAPTERS = "prompt adapters are not supported"
_TRACES = "OpenTelemetry traces are not supported"
_ONE_DEVICE = "a worker runs the whole model on one device; see --data-parallel-size for more"

_ignored = functools.partial(CompatibilityArgument, is_rejected=False)
_rejected = functools.partial(CompatibilityArgument, is_rejected=True)

COMPATIBILITY: Mapping[str, CompatibilityArgument] = {
    # Ignored with one log line.
    "enable_lora": _ignored("Adapters need no switch: lora_modules names them.", is_switch=True),
    "max_loras": _ignored(_ANY_ADAPTERS, parse=int, neutral=(1,)),
    "max_lora_rank": _ignored(_ANY_ADAPTERS, parse=int, neutral=(16,)),
    "max_cpu_loras": _ignored(_ANY_ADAPTERS, parse=int),
    "fully_sharded_loras": _ignored("One worker runs the whole model.", is_switch=True),
    "use_v2_block_manager": _ignored("There is one block manager.", is_switch=True),
    "num_lookahead_slots": _ignored(
        "The scheduler reserves blocks for every token in flight.", parse=int, neutral=(0,)
    ),
    "num_scheduler_steps": _ignored(
        "The scheduler plans the next step while the current one runs.", parse=int, neutral=(1,)
    ),
    "multi_step_stream_outputs": _ignored("Every step's tokens are streamed.", is_switch=True),
    "disable_async_output_proc": _ignored(
        "The scheduler always processes outputs while the next step runs.", is_switch=True
    ),
    "disable_frontend_multiprocessing": _ignored(
        "The gateway is always a separate process; taco_llm.LLM runs in the caller's process.",
        is_switch=True,
    ),
    "worker_use_ray": _ignored(
        "Only taco_llm serve starts workers; other workers connect by themselves.", is_switch=True
    ),
    "ray_workers_use_nsight": _ignored(
        "Start one taco_llm worker under nsys; it connects to the same scheduler.", is_switch=True
    ),
    "disable_custom_all_reduce": _ignored(
        "One worker runs the whole model and needs no all-reduce.", is_switch=True
    ),
    "max_parallel_loading_workers": _ignored(
        "Weights are mapped from disk, not copied.", parse=int
    ),
    "tokenizer_pool_size": _ignored(_TOKENIZER_POOL, parse=int, neutral=(0,)),
    "tokenizer_pool_type": _ignored(_TOKENIZER_POOL, neutral=("ray",)),
    "tokenizer_pool_extra_config": _ignored(_TOKENIZER_POOL, parse=_json_or_text),
    "max_context_len_to_capture": _ignored("Use max_seq_len_to_capture.", parse=int),
    "disable_log_requests": _ignored(
        "Prompts are logged only with --enable-log-requests.", is_switch=True
    ),
    "calculate_kv_scales": _ignored(
        "An fp8 KV cache without stored scales has one for each token and head.", is_switch=True
    ),
    "async_scheduling": _ignored(
        "The scheduler plans the next step while the current one runs.", is_switch=True
    ),
    "compilation_config": _ignored("TACO does not use torch.compile.", parse=_json_or_text),
    "scheduling_policy": _ignored(
        "Requests of a lower priority number always run sooner; the others in their order.",
        neutral=("fcfs",),
        choices=("fcfs", "priority"),
    ),
    "chat_template_content_format": _ignored(
        "The server reads the form of the content from the template.",
        neutral=("auto",),
        choices=("auto", "string", "openai"),
    ),
    "enable_prompt_tokens_details": _ignored(
        "The usage of an answer always has its cached tokens.", is_switch=True
    ),
    "enable_request_id_headers": _ignored("Every answer has X-Request-Id.", is_switch=True),
    "disable_hybrid_kv_cache_manager": _ignored("There is one block manager.", is_switch=True),
    "trust_remote_code": _ignored(_REMOTE_CODE, is_switch=True),
    "code_revision": _ignored(_REMOTE_CODE),
    "guided_decoding_backend": _ignored(
        "One engine, llguidance, serves structured output.", neutral=("auto",), choices=BACKENDS
    ),
    # Rejected: the feature is missing.
    "tensor_parallel_size": _rejected(_ONE_DEVICE, parse=int, neutral=(1,), short="-tp"),
    "pipeline_parallel_size": _rejected(_ONE_DEVICE, parse=int, neutral=(1,), short="-pp"),
    "sequence_parallel_size": _rejected(_ONE_DEVICE, parse=int, neutral=(1,)),
    "speculative_draft_tensor_parallel_size": _rejected(
        "a draft model runs whole on one worker", parse=int, neutral=(1,), short="-spec-draft-tp"
    ),
    "data_parallel_size": _rejected(
        "only taco_llm serve starts several workers", parse=int, neutral=(1,), short="-dp"
    ),
    "distributed_executor_backend": _rejected(
        "only taco_llm serve starts workers on Ray", neutral=("mp",)
    ),
    "decode_context_parallel_size": _rejected(_ONE_DEVICE, parse=int, neutral=(1,), short="-dcp"),
    "enable_expert_parallel": _rejected(_ONE_DEVICE, is_switch=True),
    "speculative_config": _rejected(
        "set --speculative-model and --num-speculative-tokens", parse=_json_or_text
    ),
    "structured_outputs_config": _rejected(
        "one engine, llguidance, serves structured output; set --reasoning-parser",
        parse=_json_or_text,
        neutral=({},),
    ),
    "kv_transfer_config": _rejected(
        "workers do not exchange KV; for host memory and disk see --enable-prefix-cache-offload",
        parse=_json_or_text,
    ),
    "generation_config": _rejected(
        "defaults come from the checkpoint's generation_config.json", neutral=("auto",)
    ),
    "override_generation_config": _rejected(
        "defaults come from the checkpoint's generation_config.json; requests can set others",
        parse=_json_or_text,
        neutral=({},),
    ),
    "model_impl": _rejected("models run as TACO's own recipes", neutral=("auto",)),
    "task": _rejected(_ONLY_TEXT, neutral=("auto", "generate")),
    "runner": _rejected(_ONLY_TEXT, neutral=("auto", "generate")),
    "enable_sleep_mode": _rejected("a worker keeps its weights while it runs", is_switch=True),
    "lora_extra_vocab_size": _rejected(
        "adapters do not add tokens to the vocabulary", parse=int, neutral=(256,)
    ),
    "lora_dtype": _rejected("adapters have the format of the model", neutral=("auto",)),
    "long_lora_scaling_factors": _rejected("adapters do not change the rotary positions"),
    "qlora_adapter_name_or_path": _rejected("lora_modules takes the adapters of any model"),
    "enable_prompt_adapter": _rejected(_PROMPT_ADAPTERS, is_switch=True),
    "prompt_adapters": _rejected(_PROMPT_ADAPTERS, takes_several=True),
    "max_prompt_adapters": _rejected(_PROMPT_ADAPTERS, parse=int, neutral=(1,)),
    "max_prompt_adapter_token": _rejected(_PROMPT_ADAPTERS, parse=int, neutral=(0,)),
    "limit_mm_per_prompt": _rejected("images, audio and video are not supported"),
    "mm_processor_kwargs": _rejected(
        "images, audio and video are not supported", parse=_json_or_text
    ),
    "override_neuron_config": _rejected(
        "AWS Neuron devices are not supported", parse=_json_or_text, neutral=({},)
    ),
    "otlp_traces_endpoint": _rejected(_TRACES),
    "collect_detailed_traces": _rejected(_TRACES),
}


def drop_compatibility_arguments(
    arguments: Mapping[str, Any],
    logger: logging.Logger = LOGGER,
    show: Callable[[str], str] = str,
) -> dict[str, Any]:
    """Returns `arguments` without those of `COMPATIBILITY`; logs one line per ignored argument.

    Args:
        show: an argument's name in log lines.

    Raises:
        ConfigurationError: an argument asks for a missing feature.
    """
    kept: dict[str, Any] = {}
    for name, value in arguments.items():
        argument = COMPATIBILITY.get(name)
        if argument is None:
            kept[name] = value
        elif argument.asks_for_something(value):
            if argument.choices and value not in argument.choices:
                allowed = ", ".join(argument.choices)
                raise ArgumentError(f"{name} must be one of {allowed}, got {value!r}")
            if argument.is_rejected:
                raise ArgumentError(argument.rejection(name, value))
            logger.warning("%s has no effect: %s", show(name), argument.reason)
    return kept


def _check_names(table: Any, arguments: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument that is neither a field of `table` nor a vLLM argument."""
    known = [*COMPATIBILITY, *(item.name for item in fields(table) if item.init)]
    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{type(table).__name__} got an unknown argument {name!r}{hint}")


def takes_compatibility_arguments(table: type[Table]) -> type[Table]:
    """Class decorator for a dataclass of arguments.

    The constructor then also accepts the arguments of `COMPATIBILITY`, former names of fields (see
    `Flag`), and None for every field, which means the field's default. The dataclass needs a field
    `given`: it holds the names of the fields whose value was not None.
    """
    construct: Callable[..., None] = table.__init__

    @functools.wraps(construct)
    def construct_from_any(self: Table, **arguments: Any) -> None:
        arguments = current_names(type(self), arguments)
        _check_names(self, arguments)
        known = drop_compatibility_arguments(arguments)
        values = {name: value for name, value in known.items() if value is not None}
        construct(self, **values)
        object.__setattr__(self, "given", frozenset(values))

    table.__init__ = construct_from_any  # type: ignore[method-assign, assignment]
    return table
