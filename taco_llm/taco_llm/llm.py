"""`LLM`: offline batch inference in the caller's process."""

import asyncio
import os
import random
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

from taco_gateway.text.tokenizer.loading import from_transformers, load_transformers_tokenizer
from taco_llm.args.engine_args import EngineArgs
from taco_llm.argument_checks import NOT_LISTS, check_type, is_list
from taco_llm.async_engine import AsyncLLMEngine
from taco_llm.beam_search import BeamSearchOutput, BeamSearchParams, beam_search_output
from taco_llm.conversations import Message, checked_conversations
from taco_llm.guided_options import GuidedDecodingRequest, LLMGuidedOptions, guided_request
from taco_llm.loop_thread import LoopThread
from taco_llm.lora_request import LoRARequest
from taco_llm.outputs import RequestOutput
from taco_llm.prompts import PromptInputs
from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import MAX_SEED, SamplingParams

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class LLM:
    """Generates text for batches of prompts. The engine runs in this process.

    `LLM` works in scripts and notebooks. It closes at the end of the program, or earlier with
    `with LLM("demo") as llm: …`.

    Args:
        model: a directory with config.json and weights, a Hugging Face hub id, or a bundled model.
        arguments: any other argument of `EngineArgs`. Positional arguments have vLLM's order.

    None means an argument's default. Arguments of vLLM that TACO does not need are ignored with one
    log line. Arguments of a missing feature are rejected, unless the value asks for nothing, such
    as `tensor_parallel_size=1`.

    Raises:
        ConfigurationError: the model cannot be found, read or run with the arguments, or an
            argument asks for a missing feature.
        TypeError: an argument is unknown.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        tokenizer: str | os.PathLike[str] | None = None,
        tokenizer_mode: str | None = None,
        skip_tokenizer_init: bool | None = None,
        trust_remote_code: bool | None = None,
        tensor_parallel_size: int | None = None,
        dtype: "str | torch.dtype | None" = None,
        quantization: str | None = None,
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        seed: int | None = None,
        gpu_memory_utilization: float | None = None,
        swap_space: float | None = None,
        cpu_offload_gb: float | None = None,
        enforce_eager: bool | None = None,
        max_context_len_to_capture: int | None = None,
        max_seq_len_to_capture: int | None = None,
        disable_custom_all_reduce: bool | None = None,
        disable_async_output_proc: bool | None = None,
        **arguments: Any,
    ) -> None:
        named: dict[str, Any] = {
            "tokenizer": tokenizer,
            "tokenizer_mode": tokenizer_mode,
            "skip_tokenizer_init": skip_tokenizer_init,
            "trust_remote_code": trust_remote_code,
            "tensor_parallel_size": tensor_parallel_size,
            "dtype": dtype,
            "quantization": quantization,
            "revision": revision,
            "tokenizer_revision": tokenizer_revision,
            "seed": seed,
            "gpu_memory_utilization": gpu_memory_utilization,
            "swap_space": swap_space,
            "cpu_offload_gb": cpu_offload_gb,
            "enforce_eager": enforce_eager,
            "max_context_len_to_capture": max_context_len_to_capture,
            "max_seq_len_to_capture": max_seq_len_to_capture,
            "disable_custom_all_reduce": disable_custom_all_reduce,
            "disable_async_output_proc": disable_async_output_proc,
        }
        if "disable_log_stats" not in arguments:
            arguments.setdefault("log_stats", False)
        named["model"] = model
        args = EngineArgs(**named, **arguments)
        self._tokenizer: Any = None
        self._model_config = args.model_config()
        # Seeds of requests without one, so that a program is reproducible.
        self._seeds = random.Random(args.seed)
        # Enough requests in flight to fill every step; more would only wait in the queue.
        self._max_in_flight = min(args.max_waiting_requests, 4 * args.max_num_seqs)
        self._engine = AsyncLLMEngine(args)
        self._loop = LoopThread("taco-llm", on_stop=self._engine.shutdown)
        # Also runs at the end of the program.
        self._close = weakref.finalize(self, self._loop.stop)

    def generate(
        self,
        prompts: PromptInputs | Sequence[PromptInputs] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        prompt_adapter_request: None = None,
        guided_options_request: LLMGuidedOptions | GuidedDecodingRequest | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Generates for all prompts. The outputs have the order of the prompts.

        Args:
            prompts: one prompt or a list: a text, `{"prompt": text}` or
                `{"prompt_token_ids": ids}`.
            sampling_params: for all prompts, or a list with one per prompt; None means the model's
                defaults.
            prompt_token_ids: prompts as token ids, instead of `prompts`.
            use_tqdm: show a progress bar.
            lora_request: an adapter of `lora_modules` for all prompts, or a list with one or None
                per prompt; None: the base model.
            prompt_adapter_request: must be None, since this feature is missing.
            guided_options_request: a constraint on all texts, as vLLM 0.6 takes it. Newer programs
                give `structured_outputs` in `sampling_params`.
            priority: one number per prompt, of which lower ones run sooner; None: all are 0.

        Raises:
            InvalidParameterError: a prompt or a parameter is invalid for the model, or asks for a
                missing feature.
            ValueError: the lists have different lengths.
            EngineError: a request failed. The other requests are cancelled then, and at Ctrl-C.
        """
        if (prompts is None) == (prompt_token_ids is None):
            raise ValueError("give either prompts or prompt_token_ids")
        _reject_unless_none(prompt_adapter_request=prompt_adapter_request)
        given = prompts if prompts is not None else prompt_token_ids
        guided = guided_request(guided_options_request) if guided_options_request else None
        return self._run(_as_list(given), sampling_params, use_tqdm, guided, priority, lora_request)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        *,
        chat_template_content_format: str = "auto",
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or a list of them. The outputs have the same order.

        Args:
            messages: mappings with `role` and `content`, which only the assistant's may lack.
            lora_request: as for `generate`.
            chat_template: a Jinja template; None means the model's template.
            add_generation_prompt: end the prompt at the start of the assistant's answer.
            continue_final_message: the model continues the last message; needs
                `add_generation_prompt=False`.
            tools: descriptions of functions, for templates that read them. Calls in the answer are
                text.
            chat_template_kwargs: variables that the template reads, such as `enable_thinking`.
            documents: texts that the template puts into the prompt.
            chat_template_content_format: auto, string or openai, which all have no effect: the
                template gets text.
            mm_processor_kwargs: must be None, since images are not supported.

        Raises: the same as `generate`.
        """
        _reject_unless_none(mm_processor_kwargs=mm_processor_kwargs)
        if chat_template_content_format not in ("auto", "string", "openai"):
            raise InvalidParameterError(
                "chat_template_content_format must be auto, string or openai",
                "chat_template_content_format",
            )
        prompts = self._loop.call(
            self._encode_chats(
                checked_conversations(messages),
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools or (),
                template_kwargs=chat_template_kwargs,
                documents=documents or (),
            )
        )
        return self._run(prompts, sampling_params, use_tqdm, lora_request=lora_request)

    def beam_search(
        self,
        prompts: PromptInputs | Sequence[PromptInputs],
        params: BeamSearchParams,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool = False,
    ) -> list[BeamSearchOutput]:
        """Finds the best texts for each prompt by beam search. Results have the prompts' order.

        Args:
            prompts, lora_request: as for `generate`.

        Raises: the same as `generate`.
        """
        outputs = self._run(
            _as_list(prompts), params.sampling_params(), use_tqdm, lora_request=lora_request
        )
        return [beam_search_output(output, params) for output in outputs]

    @property
    def llm_engine(self) -> AsyncLLMEngine:
        """The engine. Its coroutines run in an event loop in another thread."""
        return self._engine

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters that `generate` takes where none are given."""
        return self._loop.call(self._engine.default_sampling_params())

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer as a transformers object, or the one given to `set_tokenizer`.

        Raises:
            ConfigurationError: the engine has no tokenizer, or transformers cannot load it.
        """
        if self._tokenizer is None:
            self._tokenizer = load_transformers_tokenizer(self._model_config)
        return self._tokenizer

    def set_tokenizer(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Uses another tokenizer from the next call.

        Args:
            tokenizer: a transformers tokenizer with the model's vocabulary.
        """
        self._loop.call(self._engine.set_tokenizer(from_transformers(tokenizer)))
        self._tokenizer = tokenizer

    def close(self) -> None:
        """Stops the engine and its threads. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: list[PromptInputs],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        guided: GuidedDecodingRequest | None = None,
        priority: Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        each: Sequence[Any] = (
            sampling_params if is_list(sampling_params) else [sampling_params] * len(prompts)
        )
        if priority is None:
            priority = [0] * len(prompts)
        _check_one_each("sampling_params", each, SamplingParams, len(prompts))
        _check_one_each("priority", priority, int, len(prompts))
        adapters: Sequence[Any] = (
            lora_request if is_list(lora_request) else [lora_request] * len(prompts)
        )
        _check_one_each("lora_request", adapters, object, len(prompts))
        if guided is not None:
            each = [guided.constrain(params) for params in each]
        seeded = [self._with_seed(params) for params in each]
        with tqdm(total=len(prompts), desc="Prompts", disable=not use_tqdm) as progress:
            return self._loop.call(
                self._generate_all(prompts, seeded, priority, adapters, progress)
            )

    def _with_seed(self, params: SamplingParams) -> SamplingParams:
        if params.has_seed:
            return params
        return params.with_updates(seed=self._seeds.randint(0, MAX_SEED))

    async def _generate_all(
        self,
        prompts: list[PromptInputs],
        params: list[SamplingParams],
        priorities: Sequence[int],
        adapters: Sequence[LoRARequest | None],
        progress: "tqdm[Any]",
    ) -> list[RequestOutput]:
        slots = asyncio.Semaphore(self._max_in_flight)
        num_tokens = 0

        async def generate(
            prompt: PromptInputs,
            prompt_params: SamplingParams,
            priority: int,
            adapter: LoRARequest | None,
        ) -> RequestOutput:
            nonlocal num_tokens
            async with slots:
                output = await self._engine.complete(
                    prompt, prompt_params, priority=priority, lora_request=adapter
                )
            num_tokens += sum(len(sequence.token_ids) for sequence in output.outputs)
            progress.set_postfix(tokens=num_tokens, refresh=False)
            progress.update()
            return output

        requests = list(zip(prompts, params, priorities, adapters, strict=True))
        urgent_first = sorted(range(len(requests)), key=priorities.__getitem__)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {i: group.create_task(generate(*requests[i])) for i in urgent_first}
        except ExceptionGroup as errors:
            # Reports the first error only; the other requests were cancelled because of it.
            raise errors.exceptions[0] from None
        return [tasks[i].result() for i in range(len(requests))]

    async def _encode_chats(
        self,
        conversations: Sequence[Sequence[Message]],
        **options: Any,
    ) -> list[PromptInputs]:
        return [await self._engine.encode_chat(each, **options) for each in conversations]


def _as_list(prompts: Any) -> list[PromptInputs]:
    """The prompts as a list. A list of integers is one prompt of token ids."""
    if isinstance(prompts, NOT_LISTS) or not isinstance(prompts, Iterable):
        return [prompts]
    prompts = list(prompts)
    if prompts and all(isinstance(token_id, int) for token_id in prompts):
        return [prompts]
    return prompts


def _check_one_each(name: str, given: object, expected: type, num_prompts: int) -> None:
    """Checks a list with one entry per prompt.

    Raises:
        InvalidParameterError: it is no list, or has an entry of another type than `expected`.
        ValueError: it has another length.
    """
    if not is_list(given):
        raise InvalidParameterError(f"{name} must be a list, got {given!r:.80}", name)
    if len(given) != num_prompts:
        raise ValueError(
            f"{name} must have one entry per prompt: got {len(given)} for {num_prompts} prompts"
        )
    for entry in given:
        check_type(name, entry, expected)


def _reject_unless_none(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise InvalidParameterError(f"{name} is not available: it must be None", name)
