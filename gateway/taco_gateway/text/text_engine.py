"""TextEngine: text in, text out, for the HTTP routes, the Inference service and `taco_llm`."""

import asyncio
import secrets
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from taco_gateway.engine.engine_client import EngineClient, EngineError, UpdateStream, not_licensed
from taco_gateway.text.bad_words import tokenize_bad_words
from taco_gateway.text.chat_template.cache_breakpoints import Breakpoint, drop_covered
from taco_gateway.text.chat_template.prompt_rendering import ChatPromptEncoder
from taco_gateway.text.grammar.answer_rules import AnswerRules
from taco_gateway.text.grammar.grammar_pool import GrammarPool
from taco_gateway.text.infill_prompts import InfillPrompts
from taco_gateway.text.output.best_of import best_of
from taco_gateway.text.output.output_processor import OutputProcessor, TextUpdate
from taco_gateway.text.output.request_output import PromptLogprobCollector, text_updates
from taco_gateway.text.output.token_logprobs import CandidateReader
from taco_gateway.text.request_checks import (
    CheckedTokenIds,
    check_num_logprobs,
    check_priority,
    check_prompt,
    check_prompt_length,
    check_sampling,
    check_text,
    checked_token_ids,
    resolve_max_tokens,
    truncated,
    with_numbers,
)
from taco_gateway.text.request_faults import field_at_fault
from taco_gateway.text.request_processors import compiled_pattern, processors_of
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import InvalidParameterError
from taco_proto.grammars import Grammar
from taco_proto.requests import GenerateRequest, ModelInfo, PrefixPin
from taco_proto.sampling_params import MAX_SEED, SamplingParams
from taco_proto.structured_outputs import PARAM

_LONG_PROMPT = 2**14  # tokens; checking more is worth a thread
_NO_TOKENIZER = "The model is served without a tokenizer: give token ids."
_FLOAT_FIELDS = frozenset(f.name for f in fields(SamplingParams) if f.type is float)
_NUMBER_FIELDS = _FLOAT_FIELDS | frozenset(f.name for f in fields(SamplingParams) if f.type is int)
# Parameters of drawing tokens, which beam search does not do.
_RANDOM_FIELDS = frozenset({"temperature", "top_p", "top_k", "min_p"})


class TextEngine:
    """Generates text with an engine that reads and writes token ids, on the client's event loop.

    Args:
        client: the engine; the caller closes it.
        tokenizer: None (`skip_tokenizer_init`): token ids in and out, all text is empty.
        chat_template: a Jinja template or its path; None: the tokenizer's own.
        processor_pattern: names of the logits processors that requests may name; None: none.

    Attributes:
        infill_prompts: makes the prompts of requests with a suffix.

    Raises:
        ConfigurationError: the chat template cannot be read, or the pattern is invalid.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer | None,
        *,
        chat_template: str | None = None,
        processor_pattern: str | None = None,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self._chat_encoder = (
            None if tokenizer is None else ChatPromptEncoder(tokenizer, chat_template)
        )
        self.infill_prompts = InfillPrompts(tokenizer, self.model_info)
        self._candidates = CandidateReader(tokenizer)
        self._grammars = GrammarPool(tokenizer)
        self._processor_pattern = compiled_pattern(processor_pattern)

    def model_info(self) -> ModelInfo:
        """The served model.

        Raises:
            EngineError: no worker serves the model, or none has a license (503).
        """
        info = self.client.model_info()
        if info is not None and info.license_problem:
            raise not_licensed()
        if info is None or not info.ready:
            raise EngineError(503, "The model is not ready: no worker serves it.")
        return info

    def sampling_params(self, given: Mapping[str, Any]) -> SamplingParams:
        """The parameters of a client, over the model's defaults (generation_config.json).

        Args:
            given: fields of `SamplingParams`; an absent or None field takes the default, except
                `max_tokens=None`, which means as many as fit.

        Raises:
            InvalidParameterError: a value is out of range.
            EngineError: no worker serves the model (503).
        """
        defaults = {
            name: value if name in _FLOAT_FIELDS else int(value)
            for name, value in self.model_info().default_sampling.items()
            if name in _NUMBER_FIELDS
        }
        chosen = {n: value for n, value in given.items() if value is not None or n == "max_tokens"}
        if chosen.get("use_beam_search"):
            defaults = {n: value for n, value in defaults.items() if n not in _RANDOM_FIELDS}
        return SamplingParams(**defaults | chosen)

    async def encode(
        self, text: str, *, add_special_tokens: bool = True, must_fit: bool = False
    ) -> list[int]:
        """Tokenizes a prompt, off the event loop. The text may contain special tokens.

        Args:
            must_fit: reject a text that is too long for the model, if possible before it is
                tokenized.

        Raises:
            InvalidParameterError: the text is not valid Unicode, or is too long, or there is no
                tokenizer.
            EngineError: `must_fit`, and no worker serves the model (503).
        """
        if self.tokenizer is None:
            raise InvalidParameterError(_NO_TOKENIZER, "prompt")
        check_text(text, "prompt")
        max_model_len = self.model_info().max_model_len if must_fit else None
        if max_model_len is not None:
            check_prompt_length(self.tokenizer.min_num_tokens(text), max_model_len, at_least=True)
        token_ids = await asyncio.to_thread(
            self.tokenizer.encode, text, add_special_tokens=add_special_tokens
        )
        if max_model_len is not None:
            check_prompt_length(len(token_ids), max_model_len)
        return token_ids

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool | None = None,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        must_fit: bool = False,
    ) -> list[int]:
        """Tokenizes a conversation, off the event loop. Special tokens in messages stay plain text.

        Args:
            messages: role, content (a string or a list of `{"type": "text", "text": …}` parts) and
                other fields that the template reads.
            continue_final_message: the prompt ends within the last message, which the model
                continues; excludes `add_generation_prompt`.
            add_special_tokens: put the tokenizer's BOS in front, never twice. None: only if the
                model has no template.
            chat_template: Jinja source instead of the model's.
            template_kwargs: variables that the template reads; others are rejected.
            tools: descriptions of functions that the model may call.
            documents: texts that the template puts into the prompt, such as results of a search.
            must_fit: reject a prompt before it is tokenized if it is too long for sure.

        Raises:
            InvalidParameterError: the template rejects the messages or exceeds a limit, or the
                prompt is too long.
            EngineError: `must_fit`, and no worker serves the model (503).
        """
        if self._chat_encoder is None:
            raise InvalidParameterError(_NO_TOKENIZER, "messages")
        return await asyncio.to_thread(
            self._chat_encoder.encode,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            add_special_tokens=add_special_tokens,
            chat_template=chat_template,
            template_kwargs=template_kwargs,
            tools=tools,
            documents=documents,
            max_model_len=self.model_info().max_model_len if must_fit else None,
        )

    async def checked(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Checks the token ids of a long prompt in a thread, so that `generate` need not do it.

        Raises:
            InvalidParameterError: a token id is not in the vocabulary, or there are too many.
            EngineError: no worker serves the model (503).
        """
        if len(token_ids) < _LONG_PROMPT:
            return token_ids if isinstance(token_ids, list) else list(token_ids)
        return await asyncio.to_thread(checked_token_ids, token_ids, self.model_info())

    async def prefix_pins(
        self,
        messages: Sequence[Mapping[str, Any]],
        breakpoints: Sequence[Breakpoint],
        prompt_token_ids: Sequence[int],
        *,
        add_special_tokens: bool | None = None,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[PrefixPin, ...]:
        """The prefixes of a conversation's prompt to keep in the prefix cache.

        A conversation that differs after a breakpoint finds the prefix up to it. Costs as much as
        one or two calls of `encode_chat`.

        Args:
            breakpoints: in their order.
            prompt_token_ids: from `encode_chat`, with the same other arguments.
        """
        chat_encoder, places = self._chat_encoder, drop_covered(breakpoints)
        if chat_encoder is None or not places:
            return ()

        def pin(place: Breakpoint) -> PrefixPin:
            num_tokens = chat_encoder.num_tokens_before(
                place,
                messages,
                prompt_token_ids,
                add_special_tokens=add_special_tokens,
                chat_template=chat_template,
                template_kwargs=template_kwargs,
                tools=tools,
                documents=documents,
            )
            return PrefixPin(num_tokens, place.seconds)

        pins = await asyncio.to_thread(lambda: [pin(place) for place in places])
        return tuple(pin for pin in pins if pin.num_tokens)

    def truncated(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> Sequence[int]:
        """The part of a prompt that `generate` uses, according to `truncate_prompt_tokens`."""
        if params.truncate_prompt_tokens is None:
            return prompt_token_ids
        return truncated(prompt_token_ids, params, self.model_info())

    def spell(self, token_id: int) -> str:
        """The text of a token in log probabilities."""
        return self._candidates.spell(token_id)[0]

    async def grammar(
        self, params: SamplingParams, rules: AnswerRules | None = None
    ) -> Grammar | None:
        """The grammar of a request, made off the event loop; None: free text.

        Args:
            rules: the parts of an answer besides its content.

        Raises:
            InvalidParameterError: the constraint or a tool is invalid, or there is no tokenizer, or
                the request is a beam search.
            EngineError: too many grammars wait (503).
        """
        if params.structured_outputs is None and rules is None:
            return None
        if params.use_beam_search:
            raise InvalidParameterError(
                "use_beam_search cannot be combined with forced or strict calls of tools, one call "
                "or thinking_token_budget",
                "use_beam_search",
            )
        if self.tokenizer is None:
            raise InvalidParameterError(f"structured_outputs: {_NO_TOKENIZER}", PARAM)
        end_ids = self.model_info().eos_token_ids
        return await self._grammars.grammar(params.structured_outputs, rules, end_ids)

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        request: GenerateRequest,
        *,
        clamp_max_tokens: bool = False,
        sum_logprobs: bool = False,
        parsing: ParserOptions | None = None,
        in_bulk: bool = False,
        client_names: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[TextUpdate, None]:
        """Runs a request and yields the updates of its sequences as they come.

        The request is checked at once and submitted when iteration begins. Leaving the iterator
        (`aclose`, a cancelled task) cancels it upstream.

        Args:
            request: without handle and prompt, with the `grammar` of its constraint.
                `max_tokens=None` is as many as fit; a seed that is missing or -1 is drawn; with
                `best_of > n` no update comes before all sequences have ended. `pins` are dropped if
                the prompt is truncated.
            clamp_max_tokens: reduce `max_tokens` to what fits instead of rejecting it.
            sum_logprobs: updates carry `logprob_sum`.
            parsing: updates carry `parsed`.
            in_bulk: the caller needs the whole text only. An update may have many tokens, unless a
                stop string or a parser may end the text at any of them.
            client_names: the client's names of parameters, where they differ, for the `param` of
                errors while iterating.

        Raises:
            InvalidParameterError: the prompt is empty or too long (`context_length_exceeded`), a
                token id or a parameter is out of the model's range.
            EngineError: no worker serves the model (503). Also while iterating: the request failed.
        """
        info, params, pins = self.model_info(), request.sampling, request.pins
        assert params.structured_outputs is None or request.grammar is not None
        is_checked = isinstance(prompt_token_ids, CheckedTokenIds)
        if len(kept := truncated(prompt_token_ids, params, info)) < len(prompt_token_ids):
            prompt_token_ids, pins = kept, ()
        check_prompt(prompt_token_ids, info, is_checked=is_checked)
        check_sampling(params, info)
        params = with_numbers(params, info)
        check_priority(request.priority)
        for name in ("stop", "bad_words"):
            if getattr(params, name) and self.tokenizer is None:
                raise InvalidParameterError(f"{name}: {_NO_TOKENIZER}", name)
        for text in params.bad_words or ():
            check_text(text, "bad_words")
        max_tokens = resolve_max_tokens(
            params.max_tokens, len(prompt_token_ids), info, clamp=clamp_max_tokens
        )
        check_num_logprobs(params, len(prompt_token_ids), max_tokens)
        ranks = params.num_outputs > params.n
        needs_logprobs = ranks or sum_logprobs
        request = replace(
            request,
            token_ids=array("i", prompt_token_ids).tobytes(),
            sampling=params.with_updates(
                n=params.num_outputs,
                best_of=params.num_sequences if params.use_beam_search else None,
                structured_outputs=None,
                logits_processors=processors_of(params, info, self._processor_pattern),
                max_tokens=max_tokens,
                min_tokens=min(params.min_tokens, max_tokens),
                seed=params.seed if params.has_seed else secrets.randbelow(MAX_SEED),
                logprobs=params.logprobs or 0 if needs_logprobs else params.logprobs,
            ),
            pins=pins,
        )
        processors = [
            OutputProcessor(
                index,
                prompt_token_ids,
                request.sampling,
                self.tokenizer,
                self._candidates,
                info.eos_token_ids,
                gives_logprobs=params.logprobs is not None,
                sums_logprobs=needs_logprobs,
                parser=None if parsing is None else ResponseParser(parsing),
            )
            for index in range(params.num_outputs)
        ]
        prompt = None
        if params.prompt_logprobs is not None:
            prompt = PromptLogprobCollector(self._candidates)
        in_bulk = in_bulk and not params.stop and parsing is None
        at_fault = field_at_fault(params, client_names or {}, request.grammar, parsing)
        updates = text_updates(
            partial(self._submit, request), processors, prompt, at_fault, in_bulk=in_bulk
        )
        return best_of(updates, params.num_outputs, params.n) if ranks else updates

    async def _submit(self, request: GenerateRequest) -> UpdateStream:
        if request.sampling.bad_words:
            assert self.tokenizer is not None
            params = await asyncio.to_thread(tokenize_bad_words, request.sampling, self.tokenizer)
            request = replace(request, sampling=params)
        return self.client.generate(request)

    async def warm_up(self) -> None:
        """Starts the processes for chat templates, so that the first chat does not wait."""
        if self._chat_encoder is not None:
            await asyncio.to_thread(self._chat_encoder.warm_up)

    def close(self) -> None:
        """Ends the processes for chat templates, prompts and grammars."""
        self._grammars.close()
        if self.tokenizer is not None:
            self.tokenizer.close()
        if self._chat_encoder is not None:
            self._chat_encoder.close()
