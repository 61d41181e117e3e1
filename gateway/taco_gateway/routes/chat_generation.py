"""Generates the answer to a conversation, for the routes of chat and of responses."""

from collections.abc import Sequence
from dataclasses import dataclass

from taco_gateway.api_keys.key_ring import ApiKey
from taco_gateway.gateway import Gateway
from taco_gateway.protocol.chat_request import ChatCompletionRequest
from taco_gateway.text_updates import Updates
from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Generation:
    """A request whose answer is generated while its updates are read.

    Attributes:
        prompt_token_ids: as far as they were not truncated.
        params: the client's parameters over the model's defaults.
    """

    prompt_token_ids: Sequence[int]
    params: SamplingParams
    updates: Updates


async def generate_chat(
    gateway: Gateway, chat: ChatCompletionRequest, key: ApiKey, request_id: str
) -> Generation:
    """Renders the prompt of a conversation, and prepares its request to the engine.

    Raises:
        InvalidParameterError: the request is not valid for the served model.
        ApiError, EngineError: 503, the server accepts no requests.
    """
    params = gateway.engine.sampling_params(chat.sampling_values())
    _check_tools(gateway, chat)
    gateway.check_chat_template(chat.chat_template)
    gateway.check_accepting()
    tools, documents = chat.offered_tools, chat.documents or ()
    prompt_token_ids = await gateway.engine.encode_chat(
        chat.template_messages,
        add_generation_prompt=chat.starts_new_turn,
        continue_final_message=chat.continue_final_message,
        add_special_tokens=chat.add_special_tokens,
        chat_template=chat.chat_template,
        template_kwargs=chat.template_kwargs,
        tools=tools,
        documents=documents,
        must_fit=chat.truncate_prompt_tokens is None,
    )
    wish = chat.wish
    end_ids = gateway.engine.model_info().eos_token_ids
    continued = chat.messages[-1].text if chat.continue_final_message else None
    rules = gateway.formats.rules(prompt_token_ids, wish, end_ids, continued=continued)
    # Where a call is required, the answer has no content that a constraint could hold for.
    if wish.requires_call:
        params = params.with_updates(structured_outputs=None)
    grammar = await gateway.engine.grammar(params, rules)
    pins = await gateway.engine.prefix_pins(
        chat.template_messages,
        chat.breakpoints,
        prompt_token_ids,
        add_special_tokens=chat.add_special_tokens,
        chat_template=chat.chat_template,
        template_kwargs=chat.template_kwargs,
        tools=tools,
        documents=documents,
    )
    updates = gateway.engine.generate(
        await gateway.engine.checked(prompt_token_ids),
        gateway.engine_request(chat, key, params, request_id, pins, grammar),
        parsing=gateway.formats.options(
            prompt_token_ids,
            chat.tool_schemas,
            max_calls=chat.max_calls,
            skip_special_tokens=params.skip_special_tokens,
            content_is_constrained=wish.has_constraint,
            continued=continued,
        ),
        client_names=chat.client_names(),
    )
    gateway.metrics.observe_params(len(prompt_token_ids), params.n, chat.asked_max_tokens)
    gateway.log_request(request_id, chat.messages[-1].text, params)
    return Generation(gateway.engine.truncated(prompt_token_ids, params), params, updates)


def _check_tools(gateway: Gateway, chat: ChatCompletionRequest) -> None:
    """Raises:
    InvalidParameterError: the request has tools, and the server parses no calls.
    """
    if not chat.offered_tools or gateway.formats.parses_tools:
        return
    name = "functions" if chat.has_old_names else "tools"
    raise InvalidParameterError(
        f"{name} are not supported by this server: start it with --enable-auto-tool-choice "
        "--tool-call-parser NAME.",
        name,
        "unsupported_parameter",
    )
