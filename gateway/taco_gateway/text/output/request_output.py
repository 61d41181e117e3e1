"""Output of a request: the updates of its sequences in one stream, as text."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from taco_gateway.engine.engine_client import EngineError, UpdateStream
from taco_gateway.text.output.output_processor import OutputProcessor, TextUpdate
from taco_gateway.text.output.token_logprobs import Candidate, CandidateReader, TokenLogprob
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason


async def text_updates(
    submit: Callable[[], Awaitable[UpdateStream]],
    processors: Sequence[OutputProcessor],
    prompt: "PromptLogprobCollector | None",
    field_at_fault: Callable[[str], str | None],
    *,
    in_bulk: bool = False,
) -> AsyncGenerator[TextUpdate, None]:
    """Submits a request when iteration begins, and yields the text of its sequences as it comes.

    Leaving the iterator (`aclose`, a cancelled task) cancels the request. A stop string cancels its
    sequence.

    Args:
        processors: one for each sequence.
        prompt: None: prompt log probabilities were not requested.
        field_at_fault: the field that an error with a reason names; None: no single one.
        in_bulk: the caller needs the whole text only: an update may have many tokens.

    Raises:
        EngineError: the request failed.
    """
    stream = await submit()
    if in_bulk:
        stream.read_in_bulk()
    queue_seconds: float | None = None
    try:
        async for update in stream:
            if update.queue_seconds is not None:
                queue_seconds = update.queue_seconds
            if prompt is not None and update.prompt_logprobs is not None:
                prompt.add(update.prompt_logprobs)
            if not update.token_ids and update.finish_reason == FinishReason.RUNNING:
                continue
            processor = processors[update.index]
            text_update = processor.feed(update)
            text_update.queue_seconds, queue_seconds = queue_seconds, None
            if prompt is not None and update.index == 0:
                text_update.prompt_logprobs = prompt.entries()
                prompt = None
            if processor.ended_early:
                stream.cancel(update.index)
            yield text_update
    except EngineError as error:
        if error.reason:
            error.param = field_at_fault(error.reason)
        raise
    finally:
        stream.close()


class PromptLogprobCollector:
    """Collects the log probabilities of a prompt, which come in chunks during prefill."""

    def __init__(self, candidates: CandidateReader) -> None:
        self._candidates = candidates
        self._rows: list[tuple[Candidate, Sequence[Candidate]]] = []

    def add(self, columns: LogprobColumns) -> None:
        self._rows += self._candidates.rows(columns)

    def entries(self) -> list[TokenLogprob | None]:
        """One entry per prompt token; the first token has none."""
        return [None, *(TokenLogprob(chosen, top) for chosen, top in self._rows)]
