"""`POST /v1/completions`."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from time import perf_counter

from fastapi import APIRouter, Request
from fastapi.responses import Response

from taco_gateway.api_keys.key_ring import ApiKey
from taco_gateway.gateway import Gateway, gateway_of, key_of
from taco_gateway.http.sse_chunks import CompletionChunkWriter, StreamExtras, StreamHead
from taco_gateway.protocol.completion_request import CompletionRequest, Prompt
from taco_gateway.protocol.logprob_text import LogprobWriter, WrittenAnswer
from taco_gateway.protocol.logprobs import CompletionLogprobs, PromptLogprobs
from taco_gateway.protocol.request_schemas import COMPLETIONS
from taco_gateway.protocol.responses import Completion, CompletionChoice
from taco_gateway.text.output.echoed_prompt import EchoedPrompt, echoed_text, echoed_tokens
from taco_gateway.text.output.token_logprobs import TokenLogprob
from taco_gateway.text_updates import Choice, Updates, merged, without_generated_tokens
from taco_gateway.usage_and_latency import RequestStats
from taco_proto.errors import InvalidParameterError
from taco_proto.grammars import Grammar
from taco_proto.sampling_params import SamplingParams

MAX_SEQUENCES = 4096  # of one request, over all its prompts

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    arrival = perf_counter()
    gateway = gateway_of(request)
    body = await gateway.read_request(request, COMPLETIONS)
    key = key_of(request)
    gateway.check_model(body.model, key)
    with body.errors_with_client_names():
        params = gateway.engine.sampling_params(body.sampling_values())
        if body.suffix:
            params = gateway.engine.infill_prompts.with_ends(params)
    if len(body.prompts) * params.num_sequences > MAX_SEQUENCES:
        raise InvalidParameterError(
            f"A request may ask for at most {MAX_SEQUENCES} sequences over all its prompts.", "n"
        )
    gateway.check_accepting()
    with body.errors_with_client_names():
        grammar = await gateway.engine.grammar(params)
    # One prompt at a time: a request uses one thread, and fails at the first prompt that is too
    # long.
    prompts = [
        await gateway.engine.checked(await _encode(gateway, body, prompt))
        for prompt in body.prompts
    ]
    request_id = f"cmpl-{request.state.request_id}"
    with body.errors_with_client_names():
        updates = _generate(gateway, body, params, grammar, prompts, key, request_id)
    for token_ids in prompts:
        gateway.metrics.observe_params(len(token_ids), params.n, body.asked_max_tokens)
    kept = [gateway.engine.truncated(prompt, params) for prompt in prompts]
    echoed: list[EchoedPrompt] = []
    if body.echo:
        echoed = await asyncio.to_thread(_echoed, gateway, body, prompts, kept)
    for prompt in body.prompts:
        gateway.log_request(request_id, prompt, params)
    answer = _CompletionAnswer(gateway, body, params, kept, echoed, request_id)
    stats = gateway.request_stats(request, arrival, body.model, params.n)
    if body.stream:
        return gateway.event_stream(answer.chunk_writer().frames(updates, stats))
    return await gateway.answer(request, answer.whole(updates, stats))


async def _encode(gateway: Gateway, body: CompletionRequest, prompt: Prompt) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    gateway.require_tokenizer()
    add_special_tokens = body.add_special_tokens is not False
    if body.suffix:
        return await gateway.engine.infill_prompts.encode(
            prompt, body.suffix, add_special_tokens=add_special_tokens
        )
    return await gateway.engine.encode(
        prompt,
        add_special_tokens=add_special_tokens,
        must_fit=body.truncate_prompt_tokens is None,
    )


def _generate(
    gateway: Gateway,
    body: CompletionRequest,
    params: SamplingParams,
    grammar: Grammar | None,
    prompts: Sequence[Sequence[int]],
    key: ApiKey,
    request_id: str,
) -> Updates:
    streams = []
    for number, token_ids in enumerate(prompts):
        own_id = request_id if len(prompts) == 1 else f"{request_id}-{number}"
        pins = body.pins_of_whole(len(token_ids))
        request = gateway.engine_request(body, key, params, own_id, pins, grammar)
        clamps = body.asked_max_tokens is None
        streams.append(
            gateway.engine.generate(
                token_ids, request, clamp_max_tokens=clamps, client_names=body.client_names()
            )
        )
    updates = merged(streams, params.n)
    return without_generated_tokens(updates) if body.generates_no_tokens else updates


class _CompletionAnswer:
    """Turns the updates of one request into its response, streamed or whole."""

    def __init__(
        self,
        gateway: Gateway,
        body: CompletionRequest,
        params: SamplingParams,
        prompts: Sequence[Sequence[int]],
        echoed: Sequence[EchoedPrompt],
        request_id: str,
    ) -> None:
        self._formatter = gateway.logprob_formatter(body)
        self._writer = LogprobWriter(self._formatter)
        self._body = body
        self._n = params.n
        self._num_choices = len(body.prompts) * params.n
        self._id = request_id
        self._model = body.model or gateway.model_names[0]
        self._created = int(time.time())
        self._fingerprint = gateway.system_fingerprint
        self._prompts = prompts
        self._echo = [prompt for prompt in echoed for _ in range(params.n)]

    async def whole(self, updates: Updates, stats: RequestStats) -> WrittenAnswer:
        choices = [Choice() for _ in range(self._num_choices)]
        prompt_rows: dict[int, list[TokenLogprob | None]] = {}
        async with aclosing(updates):
            with stats:
                async for update in updates:
                    choices[update.index].add(update)
                    stats.add(update)
                    if update.prompt_logprobs is not None:
                        prompt_rows[update.index // self._n] = update.prompt_logprobs
        answer = Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=[
                await self._choice(index, choice, prompt_rows.get(index // self._n))
                for index, choice in enumerate(choices)
            ],
            usage=stats.usage(),
        )
        return WrittenAnswer(answer, self._writer.texts)

    def chunk_writer(self) -> CompletionChunkWriter:
        body = self._body
        head = StreamHead(
            id=self._id,
            object="text_completion",
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
        )
        prompt_ids = [prompt for prompt in self._prompts for _ in range(self._n)]
        extras = StreamExtras(
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
            formatter=self._formatter if body.logprobs is not None else None,
            prompt_token_ids=prompt_ids if body.return_token_ids else None,
        )
        return CompletionChunkWriter(
            head,
            extras,
            num_choices=self._num_choices,
            sequences_per_prompt=self._n,
            echo=self._echo,
        )

    async def _choice(
        self, index: int, choice: Choice, prompt_rows: list[TokenLogprob | None] | None
    ) -> CompletionChoice:
        echoed = self._echo[index].text if self._echo else ""
        logprobs = await self._logprobs(index, choice, prompt_rows)
        prompt_logprobs: PromptLogprobs | None = None
        if self._body.prompt_logprobs is not None and prompt_rows is not None:
            prompt_logprobs = await self._writer.prompt(prompt_rows)
        return CompletionChoice(
            index=index,
            text=echoed + choice.text,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            prompt_logprobs=prompt_logprobs,
            token_ids=choice.token_ids if self._body.return_token_ids else None,
            prompt_token_ids=(
                list(self._prompts[index // self._n]) if self._body.return_token_ids else None
            ),
        )

    async def _logprobs(
        self, index: int, choice: Choice, prompt_rows: list[TokenLogprob | None] | None
    ) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        formatter = self._formatter
        if not self._echo:
            return await self._writer.completion(
                choice.logprobs, lambda: formatter.completion(choice.logprobs)
            )
        echoed = self._echo[index]

        def columns() -> CompletionLogprobs:
            found = formatter.echoed_prompt(echoed, prompt_rows or [])
            found.extend(formatter.completion(choice.logprobs, offset=len(echoed.text)))
            return found

        return await self._writer.completion([*(prompt_rows or ()), *choice.logprobs], columns)


def _echoed(
    gateway: Gateway,
    body: CompletionRequest,
    encoded: Sequence[Sequence[int]],
    kept: Sequence[Sequence[int]],
) -> list[EchoedPrompt]:
    """The prompts that `echo` returns: the client's text, unless it was truncated or token ids.

    Blocks: call it from a thread.
    """
    tokenizer = gateway.require_tokenizer()
    echoed = []
    for prompt, whole, token_ids in zip(body.prompts, encoded, kept, strict=True):
        text = prompt if isinstance(prompt, str) and len(token_ids) == len(whole) else None
        if body.logprobs is None:
            echoed.append(echoed_text(tokenizer, token_ids, text))
        else:
            echoed.append(echoed_tokens(tokenizer, gateway.engine.spell, token_ids, text))
    return echoed
