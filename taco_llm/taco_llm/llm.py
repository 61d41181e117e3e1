"""`LLM`: offline inference in the caller's process."""

import asyncio
import logging
import random
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from taco_llm.async_engine import AsyncLLMEngine, Prompt
from taco_llm.engine_args import EngineArgs
from taco_llm.loop_thread import LoopThread
from taco_llm.outputs import RequestOutput
from taco_llm.superseded import drop_superseded
from taco_proto.sampling_params import MAX_SEED, SamplingParams

LOGGER = logging.getLogger("taco.llm")

Message = Mapping[str, Any]


class LLM:
    """Generates text for batches of prompts, with the whole engine in this process.

    It works in scripts and notebooks alike, ends with the program, and may be closed earlier:
    `with LLM("demo") as llm: …`.

    Args:
        model: a directory with config.json and weights, a Hugging Face hub id, or a bundled model.
        tokenizer: directory or hub id of the tokenizer; None: the model's own.
        arguments: the other arguments of `EngineArgs`. Those of other engines that have no meaning
            here (`gpu_memory_utilization`, `enforce_eager`, …) are accepted with one log line.

    Raises:
        ConfigurationError: the model cannot be found, read or run as the arguments say.
        TypeError: an argument is unknown.
    """

    def __init__(self, model: str, tokenizer: str | None = None, **arguments: Any) -> None:
        arguments.setdefault("disable_log_stats", True)
        args = EngineArgs(model=model, tokenizer=tokenizer, **drop_superseded(arguments, LOGGER))
        # Requests without a seed get theirs from here, so that a program gives the same text again.
        self._seeds = random.Random(args.seed)
        # So many at once keep every step full; more would only wait in the scheduler's queue.
        self._max_in_flight = min(args.max_waiting_requests, 4 * args.max_num_seqs)
        self._engine = AsyncLLMEngine(args)
        self._loop = LoopThread("taco-llm", on_stop=self._engine.shutdown)
        # Runs when the program ends, too.
        self._close = weakref.finalize(self, self._loop.stop)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generates for all prompts; the outputs stand in the order of the prompts.

        Args:
            prompts: one or a list of: a text, `{"prompt": text}`, `{"prompt_token_ids": ids}`.
            sampling_params: for all prompts, or a list with one for each; None: the model's
                defaults.
            prompt_token_ids: prompts as token ids, instead of `prompts`.
            use_tqdm: show a progress bar.

        Raises:
            InvalidParameterError: a prompt or a parameter is out of the model's range.
            ValueError: the lists do not fit together.
            EngineError: a request failed. Then, and at Ctrl-C, the others are cancelled.
        """
        if (prompts is None) == (prompt_token_ids is None):
            raise ValueError("give either prompts or prompt_token_ids")
        given = prompts if prompts is not None else prompt_token_ids
        return self._run(_as_list(given), sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answers one conversation or a list of them; the outputs stand in their order.

        Args:
            messages: mappings with `role` and `content`.
            chat_template: a Jinja template; None: the model's own.
            add_generation_prompt: end the prompt where the assistant's answer begins.

        Raises:
            what `generate` raises.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = self._loop.call(
            self._encode_chats(conversations, chat_template, add_generation_prompt)  # type: ignore[arg-type]
        )
        return self._run(prompts, sampling_params, use_tqdm)

    def close(self) -> None:
        """Stops the engine and frees the model's threads. Idempotent."""
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
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        if sampling_params is None:
            sampling_params = self._loop.call(self._engine.default_sampling_params())
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(
                f"{len(prompts)} prompts need as many sampling_params, got {len(sampling_params)}"
            )
        seeded = [self._with_seed(params) for params in sampling_params]
        with tqdm(total=len(prompts), desc="Prompts", disable=not use_tqdm) as progress:
            return self._loop.call(self._generate_all(prompts, seeded, progress))

    def _with_seed(self, params: SamplingParams) -> SamplingParams:
        if params.seed is not None:
            return params
        return params.with_updates(seed=self._seeds.randint(0, MAX_SEED))

    async def _generate_all(
        self, prompts: list[Prompt], params: list[SamplingParams], progress: "tqdm[Any]"
    ) -> list[RequestOutput]:
        slots = asyncio.Semaphore(self._max_in_flight)
        num_tokens = 0

        async def generate(prompt: Prompt, prompt_params: SamplingParams) -> RequestOutput:
            nonlocal num_tokens
            async with slots:
                output = await self._engine.complete(prompt, prompt_params)
            num_tokens += sum(len(sequence.token_ids) for sequence in output.outputs)
            progress.set_postfix(tokens=num_tokens, refresh=False)
            progress.update()
            return output

        pairs = zip(prompts, params, strict=True)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(generate(*pair)) for pair in pairs]
        except ExceptionGroup as errors:
            # The first failure is reported as itself; those behind it were cancelled.
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _encode_chats(
        self,
        conversations: Sequence[Sequence[Message]],
        chat_template: str | None,
        add_generation_prompt: bool,
    ) -> list[Prompt]:
        return [
            await self._engine.encode_chat(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
            )
            for conversation in conversations
        ]


def _as_list(prompts: Any) -> list[Prompt]:
    """One prompt or several, as a list; a list of numbers is one prompt of token ids."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    prompts = list(prompts)
    if prompts and all(isinstance(token_id, int) for token_id in prompts):
        return [prompts]
    return prompts
