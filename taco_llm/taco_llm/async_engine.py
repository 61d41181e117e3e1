"""`AsyncLLMEngine`: the engine in the caller's process, for asyncio programs."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from taco_common.garbage import unfreezing
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.text.text_engine import TextEngine
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.model_location import suggesting
from taco_llm.argument_checks import check_type, is_list
from taco_llm.local_client import LocalClient
from taco_llm.lora_request import LoRARequest, adapter_of
from taco_llm.outputs import CompletionOutput, PromptText, RequestOutput
from taco_llm.prompts import PromptInputs
from taco_llm.running_request import RunningRequest
from taco_proto.config import DRAIN_SECONDS, DrafterConfig
from taco_proto.errors import ConfigurationError, InvalidParameterError
from taco_proto.requests import GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import WorkerInfo
from taco_scheduler.admission.validation import InvalidWorkerError, check_drafter
from taco_scheduler.server.drafter_links import DraftExecutor
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.worker_links import WorkerLink
from taco_worker.licensing import Licensing
from taco_worker.startup_checks import check_model
from taco_worker.torch_library import link_torch_early
from taco_worker.worker_loading import load_worker


class AsyncLLMEngine:
    """Scheduler and worker in this process, without sockets.

    The engine can be made anywhere. It belongs to the event loop that first generates with it.
    """

    def __init__(self, args: EngineArgs) -> None:
        """Loads the model. Blocks until it is loaded.

        Raises:
            ConfigurationError: the model cannot be found, read or run with `args`, or a needed
                license is missing.
        """
        args.warn_of_unused_tier_arguments()
        worker_config = args.worker_config()
        self._licensing = Licensing(worker_config)
        with unfreezing(), contextlib.ExitStack() as undo:
            undo.callback(self._licensing.close)
            self._licensing.ask()
            if not Path(worker_config.model.model).is_dir():
                # The tokenizer would be the first to miss a model that the hub does not have.
                with suggesting(args.model):
                    check_model(worker_config.model)
            link_torch_early(worker_config.device)
            # The tokenizer loads meanwhile, and its errors end the loading.
            pool = ThreadPoolExecutor(1, "tokenizer")
            tokenizer = pool.submit(load_tokenizer, worker_config.model)
            pool.shutdown(wait=False)  # the thread ends with its task
            self._worker = load_worker(worker_config, before_weights=tokenizer.result)
            undo.callback(self._worker.close)
            self._tokenizer = tokenizer.result()
            self._drafter = _load_drafter(args.drafter_config(), self._worker.info)
            _check_license(self._licensing)
            undo.pop_all()
        self._adapters = args.adapters
        self._scheduler = SchedulerService(args.scheduler_config())
        self._starting: asyncio.Future[TextEngine] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: dict[str, RunningRequest] = {}
        self._closed = False

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> "AsyncLLMEngine":
        return cls(args)

    async def generate(
        self,
        prompt: PromptInputs,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generates for one prompt. Yields the whole output so far; the last item is finished.

        Closing the iterator early cancels the request.

        Args:
            sampling_params: None means the model's defaults.
            request_id: the id for `abort`; None means a random id.
            priority: a lower number runs sooner.
            lora_request: the adapter; None: the base model.

        Raises:
            InvalidParameterError: the prompt or a parameter is invalid for the model.
            EngineError: the request failed.
            RuntimeError: the first request came from another event loop.
            ValueError: `request_id` is in use.
        """
        request = await self._submit(prompt, sampling_params, request_id, priority, lora_request)
        try:
            async for output in request.outputs():
                yield output
        finally:
            await self.abort(request.output.request_id)

    async def complete(
        self,
        prompt: PromptInputs,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> RequestOutput:
        """Generates for one prompt; returns the finished output. Raises the same as `generate`.

        The output of an aborted request may lack its last tokens.
        """
        request = await self._submit(
            prompt, sampling_params, request_id, priority, lora_request, in_bulk=True
        )
        try:
            return await request.finished()
        finally:
            await self.abort(request.output.request_id)

    async def abort(self, request_id: str) -> None:
        """Cancels a request. Its reader gets the output so far, with finish_reason "abort"."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            await request.close()

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """The token ids of a conversation; see `TextEngine.encode_chat`."""
        text_engine = await self._started()
        return await text_engine.encode_chat(messages, **options)

    async def default_sampling_params(self) -> SamplingParams:
        """The defaults of the model's generation_config.json."""
        return (await self._started()).sampling_params({})

    async def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Replaces the tokenizer for new requests. Running requests keep the old one."""
        before = await self._started()
        self._tokenizer = tokenizer
        self._starting = asyncio.get_running_loop().create_future()
        self._starting.set_result(TextEngine(before.client, tokenizer))
        before.close()

    async def shutdown(self) -> None:
        """Aborts running requests, writes pending KV blocks to disk, and stops the engine.

        Idempotent.
        """
        self._closed = True
        for request_id in list(self._requests):
            await self.abort(request_id)
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if self._starting.exception() is None:
                text_engine = self._starting.result()
                text_engine.close()
                await text_engine.client.close()
                await self._scheduler.drain(DRAIN_SECONDS)
            await self._scheduler.stop()
        self._worker.close()
        self._licensing.close()

    async def _submit(
        self,
        prompt: PromptInputs,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        lora_request: LoRARequest | None,
        *,
        in_bulk: bool = False,
    ) -> RunningRequest:
        text_engine = await self._started()
        if params is None:
            params = text_engine.sampling_params({})
        check_type("sampling_params", params, SamplingParams)
        check_type("priority", priority, int)
        adapter = adapter_of(lora_request, self._adapters)
        text, token_ids = _parse_prompt(prompt)
        if text is not None:
            token_ids = await text_engine.encode(text)
        token_ids = text_engine.truncated(token_ids, params)
        grammar = await text_engine.grammar(params)
        request_id = request_id or uuid.uuid4().hex
        if request_id in self._requests:
            raise ValueError(f"request_id {request_id!r} is in use: give each request its own id")
        request = GenerateRequest(
            request_id=request_id,
            sampling=params,
            priority=priority,
            adapter=adapter,
            grammar=grammar,
        )
        # A log probability needs the logits of all tokens, which a grammar would save.
        sum_logprobs = grammar is None or params.logprobs is not None
        updates = text_engine.generate(
            token_ids, request, sum_logprobs=sum_logprobs, in_bulk=in_bulk
        )
        token_ids = list(token_ids)  # the caller may change theirs
        output = RequestOutput(
            request_id=request_id,
            prompt_text=self._prompt_text(text, token_ids),
            prompt_token_ids=token_ids,
            outputs=[CompletionOutput(index) for index in range(params.n)],
        )
        running = RunningRequest(output, updates)
        self._requests[request_id] = running
        return running

    def _prompt_text(self, text: str | None, token_ids: Sequence[int]) -> PromptText:
        if text is not None or self._tokenizer is None:
            return PromptText(text)
        return PromptText(
            None, partial(self._tokenizer.decode, token_ids, skip_special_tokens=False)
        )

    async def _started(self) -> TextEngine:
        """The text engine. The first call starts it.

        Raises:
            EngineError: the engine has been shut down.
            RuntimeError: another event loop made the first call.
        """
        if self._closed:
            raise EngineError(503, "The engine has been shut down.")
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError(
                "the engine belongs to the event loop of its first request: call asyncio.run once "
                "for all requests, or make one engine per loop"
            )
        self._loop = loop
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> TextEngine:
        await self._scheduler.start()
        self._watch_license(self._scheduler.attach_local(self._worker))
        if self._drafter is not None:
            self._scheduler.attach_local_drafter(self._drafter)
        client = await LocalClient.connect(self._scheduler)
        return TextEngine(client, self._tokenizer)

    def _watch_license(self, link: WorkerLink) -> None:
        """Makes the scheduler reject new requests while the worker has no license."""
        loop = asyncio.get_running_loop()

        def note() -> None:
            self._scheduler.on_license_change(link, self._licensing.current())

        def note_soon() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(note)

        self._licensing.on_change = note_soon
        note()


def _check_license(licensing: Licensing) -> None:
    """Raises ConfigurationError if the worker needs a license and has none."""
    license_ = licensing.wait_for_answer()
    if not license_.is_valid:
        raise ConfigurationError(f"there is no license: {license_.reason}")


def _load_drafter(config: DrafterConfig | None, worker: WorkerInfo) -> DraftExecutor | None:
    """Loads the draft model in this process.

    Raises:
        ConfigurationError: the model cannot be found, read or run, or has another vocabulary.
    """
    if config is None:
        return None
    from taco_draft.draft_runner import DraftRunner

    drafter = DraftRunner(config)
    try:
        check_drafter(drafter.info, worker)
    except InvalidWorkerError as error:
        raise ConfigurationError(str(error)) from None
    return drafter


def _parse_prompt(prompt: Any) -> tuple[str | None, Sequence[int]]:
    """Returns the text of a prompt, or None and its token ids."""
    if isinstance(prompt, str):
        return prompt, ()
    if isinstance(prompt, Mapping):
        given = {name: value for name, value in prompt.items() if value is not None}
        for name in given.keys() - {"prompt", "prompt_token_ids"}:
            raise InvalidParameterError(
                f"{name!r} of a prompt is not available: give 'prompt' or 'prompt_token_ids'",
                "prompt",
            )
        if len(given) == 1:
            return _parse_prompt(next(iter(given.values())))
    elif is_list(prompt):
        return None, prompt
    raise InvalidParameterError(
        "a prompt must be a text, a list of token ids, or a mapping with either prompt or "
        f"prompt_token_ids, got {prompt!r:.80}",
        "prompt",
    )
