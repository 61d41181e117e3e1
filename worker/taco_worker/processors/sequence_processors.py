"""The logits processors of one sequence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from taco_proto.errors import InvalidParameterError
from taco_proto.logits_processors import LogitsProcessor, processor_name, reads_prompt
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import RowErrorCode
from taco_worker.processors.loading import LoadedProcessor

logger = logging.getLogger("taco.worker")

_MAX_TEXT_CHARS = 4096


class ProcessorError(Exception):
    """A sequence cannot continue. The text is for its client: bounded, and valid Unicode, though
    an operator's exception may quote a lone surrogate, which protobuf cannot carry."""

    def __init__(self, message: str, code: RowErrorCode = RowErrorCode.PROCESSOR_FAILED) -> None:
        super().__init__(message[:_MAX_TEXT_CHARS].encode(errors="backslashreplace").decode())
        self.code = code


class _WrongResultError(Exception):
    """A processor returned something other than logits."""


@dataclass(frozen=True, slots=True)
class _Processor:
    """One function of one sequence.

    Attributes:
        reads_prompt: it takes the prompt as first argument.
        is_own: it came with the request, from this process: its client may read its exceptions.
    """

    name: str
    function: LogitsProcessor
    reads_prompt: bool
    is_own: bool

    def failure(self, error: BaseException) -> ProcessorError:
        """Logs what went wrong. The text of an operator's exception is not for clients."""
        logger.error("logits processor %s failed", self.name, exc_info=error)
        described = type(error).__name__
        if isinstance(error, _WrongResultError):
            described = str(error)
        elif self.is_own:
            described = f"{described}: {error}"
        return ProcessorError(f"the logits processor {self.name} failed: {described}")


@dataclass(slots=True)
class SequenceProcessors:
    """The processors of one sequence, and the tokens that they read.

    Attributes:
        output: committed tokens that the sequence has generated.
    """

    prompt: list[int]
    output: list[int]
    _processors: list[_Processor] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._processors)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    def make(self, params: SamplingParams, loaded: Mapping[str, LoadedProcessor]) -> None:
        """Make the functions of a sequence that joins.

        A processor with a method `clone` is cloned, so that sequences share no state.

        Raises:
            ProcessorError: a processor rejects its arguments, or raises.
        """
        for given in params.logits_processors or ():
            name, is_own = processor_name(given), not isinstance(given, str)
            try:
                function = _new(given, loaded, params) if isinstance(given, str) else _clone(given)
                if function is None:
                    continue
                made = _Processor(name, function, reads_prompt(function), is_own)
            except BaseException as error:
                raise _join_failure(name, error, is_own=is_own) from None
            self._processors.append(made)

    def apply(self, logits: Tensor, draft: list[int]) -> None:
        """Change one row of logits in place.

        Args:
            logits: float32 [vocab_size], of the token behind the output and `draft`.
            draft: draft tokens behind the output that this row follows.

        Raises:
            ProcessorError: a processor raised, or returned something other than logits.
        """
        for processor in self._processors:
            output = self.output + draft  # a copy: the processor may change it
            try:
                if processor.reads_prompt:
                    result = processor.function(self.prompt, output, logits)
                else:
                    result = processor.function(output, logits)
                if result is not logits:
                    logits.copy_(_checked(result, logits))
            except BaseException as error:  # SystemExit too: only the sequence ends
                raise processor.failure(error) from None


def _clone(given: LogitsProcessor) -> LogitsProcessor:
    clone = getattr(given, "clone", None)
    return clone() if callable(clone) else given


def _new(
    name: str, loaded: Mapping[str, LoadedProcessor], params: SamplingParams
) -> LogitsProcessor | None:
    processor = loaded.get(name)
    if processor is None:
        raise InvalidParameterError(f"the worker has not loaded {name}")
    validate = getattr(processor, "validate_params", None)
    if callable(validate):
        validate(params)
    return processor.new_req_logits_processor(params)


def _join_failure(name: str, error: BaseException, *, is_own: bool) -> ProcessorError:
    if isinstance(error, ValueError):
        return ProcessorError(f"{name}: {error}", RowErrorCode.INVALID_ARGUMENTS)
    logger.error("logits processor %s failed", name, exc_info=error)
    described = f"{type(error).__name__}: {error}" if is_own else type(error).__name__
    return ProcessorError(f"the logits processor {name} failed: {described}")


def _checked(result: object, like: Tensor) -> Tensor:
    if not isinstance(result, Tensor):
        raise _WrongResultError(f"it returned {type(result).__name__} instead of the logits")
    if result.shape != like.shape or not result.is_floating_point():
        raise _WrongResultError(
            f"it returned {result.dtype} {list(result.shape)} instead of logits {list(like.shape)}"
        )
    return result
