"""Offline beam search: the parameters and results of `LLM.beam_search`, with vLLM's names."""

from dataclasses import dataclass

from taco_llm.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from taco_proto.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of `LLM.beam_search`. Positional arguments have vLLM's order.

    Attributes:
        beam_width: number of beams, and of texts to return.
        max_tokens: most tokens to generate.
        ignore_eos: continue after the model's end-of-sequence token.
        temperature: divides the logits; 0, as 1, leaves them unchanged.
        length_penalty: divides a text's sum of log probabilities by its number of generated tokens
            to this power.
        include_stop_str_in_output: keep the end-of-sequence token at the end of a text.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def sampling_params(self) -> SamplingParams:
        """The same search as parameters of a request.

        Raises:
            InvalidParameterError: a value is out of range.
        """
        return SamplingParams(
            n=self.beam_width,
            use_beam_search=True,
            length_penalty=self.length_penalty,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=0,
        )


@dataclass(slots=True)
class BeamSearchSequence:
    """One text of a beam search.

    Attributes:
        tokens: the prompt's tokens and the generated ones.
        logprobs: one entry per generated token, the one that ended the text included.
        cum_logprob: sum of the log probabilities of the generated tokens.
        text: of the prompt and the generated tokens; None without a tokenizer.
        finish_reason: "stop" or "length".
        stop_reason: the token that ended it, if that is no end-of-sequence token.
    """

    tokens: list[int]
    logprobs: list[PositionLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The texts that a beam search found for one prompt, best first."""

    sequences: list[BeamSearchSequence]


def beam_search_output(output: RequestOutput, params: BeamSearchParams) -> BeamSearchOutput:
    """The result for one prompt, from the output of its request."""
    return BeamSearchOutput([_sequence(output, text, params) for text in output.outputs])


def _sequence(
    output: RequestOutput, text: CompletionOutput, params: BeamSearchParams
) -> BeamSearchSequence:
    tokens = text.token_ids
    if text.finish_reason == "stop" and not params.include_stop_str_in_output:
        tokens = tokens[:-1]
    return BeamSearchSequence(
        tokens=[*output.prompt_token_ids, *tokens],
        logprobs=text.logprobs or [],
        cum_logprob=text.cumulative_logprob or 0.0,
        text=None if output.prompt is None else output.prompt + text.text,
        finish_reason=text.finish_reason,
        stop_reason=text.stop_reason,
    )
