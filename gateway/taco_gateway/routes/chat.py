"""`POST /v1/chat/completions`."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from time import perf_counter

from fastapi import APIRouter, Request
from fastapi.responses import Response

from taco_gateway.gateway import Gateway, gateway_of, key_of
from taco_gateway.http.sse_chunks import ChatChunkWriter, StreamExtras, StreamHead
from taco_gateway.protocol.chat_request import ChatCompletionRequest
from taco_gateway.protocol.logprob_text import LogprobWriter, WrittenAnswer
from taco_gateway.protocol.logprobs import LogprobFormatter
from taco_gateway.protocol.request_schemas import CHAT
from taco_gateway.protocol.responses import ChatChoice, ChatCompletion, finish_reason
from taco_gateway.routes.chat_generation import generate_chat
from taco_gateway.routes.chat_message import answer_message
from taco_gateway.text.output.token_logprobs import TokenLogprob
from taco_gateway.text_updates import Choice, Updates
from taco_gateway.usage_and_latency import RequestStats

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    arrival = perf_counter()
    gateway = gateway_of(request)
    chat = await gateway.read_request(request, CHAT)
    key = key_of(request)
    gateway.check_model(chat.model, key)
    request_id = f"chatcmpl-{request.state.request_id}"
    with chat.errors_with_client_names():
        generation = await generate_chat(gateway, chat, key, request_id)
    updates = generation.updates
    answer = _ChatAnswer(gateway, chat, generation.prompt_token_ids, request_id)
    stats = gateway.request_stats(request, arrival, chat.model, chat.num_choices)
    if chat.stream:
        return gateway.event_stream(answer.chunk_writer().frames(updates, stats))
    return await gateway.answer(request, answer.whole(updates, stats))


class _ChatAnswer:
    """Turns the updates of one request into its response, streamed or whole."""

    def __init__(
        self,
        gateway: Gateway,
        chat: ChatCompletionRequest,
        prompt_token_ids: Sequence[int],
        request_id: str,
    ) -> None:
        self._formatter: LogprobFormatter | None = None
        if chat.logprobs:
            self._formatter = gateway.logprob_formatter(chat)
        self._writer = LogprobWriter(gateway.logprob_formatter(chat))
        self._chat = chat
        self._prompt_token_ids = prompt_token_ids
        self._fingerprint = gateway.system_fingerprint
        self._num_choices = chat.num_choices
        last = chat.messages[-1]
        self._role = gateway.config.response_role if chat.starts_new_turn else last.role
        # The answer can only repeat a message with the same role.
        self._echo = last.text if chat.echo and last.role == self._role else ""
        self._id = request_id
        self._model = chat.model or gateway.model_names[0]
        self._created = int(time.time())

    async def whole(self, updates: Updates, stats: RequestStats) -> WrittenAnswer:
        choices = [Choice() for _ in range(self._num_choices)]
        prompt_rows: list[TokenLogprob | None] | None = None
        async with aclosing(updates):
            with stats:
                async for update in updates:
                    choices[update.index].add(update)
                    stats.add(update)
                    if update.prompt_logprobs is not None:
                        prompt_rows = update.prompt_logprobs
        answer = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=[await self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=stats.usage(),
            prompt_logprobs=None if prompt_rows is None else await self._writer.prompt(prompt_rows),
            prompt_token_ids=(
                list(self._prompt_token_ids) if self._chat.return_token_ids else None
            ),
        )
        return WrittenAnswer(answer, self._writer.texts)

    def chunk_writer(self) -> ChatChunkWriter:
        chat = self._chat
        head = StreamHead(
            id=self._id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
        )
        extras = StreamExtras(
            include_usage=chat.include_usage,
            continuous_usage=chat.continuous_usage,
            formatter=self._formatter,
            prompt_token_ids=[self._prompt_token_ids] if chat.return_token_ids else None,
            gives_reasoning=chat.include_reasoning,
            has_old_names=chat.has_old_names,
        )
        return ChatChunkWriter(
            head, extras, role=self._role, num_choices=self._num_choices, echo=self._echo
        )

    async def _choice(self, index: int, choice: Choice) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=answer_message(
                choice,
                self._role,
                self._echo,
                gives_reasoning=self._chat.include_reasoning,
                has_old_names=self._chat.has_old_names,
            ),
            logprobs=await self._writer.chat(choice.logprobs) if self._formatter else None,
            finish_reason=finish_reason(choice.finish_reason, self._chat.has_old_names),
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if self._chat.return_token_ids else None,
        )
