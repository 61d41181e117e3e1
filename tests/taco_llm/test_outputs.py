"""Results of offline generation: the prompt's text is decoded when it is read, and only once."""

import pickle

from taco_llm.outputs import CompletionOutput, PromptText, RequestOutput


class Decoder:
    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> str:
        self.num_calls += 1
        return "a prompt"


def output_of(prompt: PromptText) -> RequestOutput:
    return RequestOutput("request", prompt, [1, 2], [CompletionOutput(0)])


def test_prompt_is_decoded_by_its_first_reader() -> None:
    decoder = Decoder()
    output = output_of(PromptText(None, decoder))
    copy = output.snapshot()
    assert decoder.num_calls == 0
    assert (output.prompt, copy.prompt, output.prompt) == ("a prompt",) * 3
    assert decoder.num_calls == 1


def test_known_prompts_need_no_decoder() -> None:
    assert output_of(PromptText("known")).prompt == "known"
    assert output_of(PromptText(None)).prompt is None


def test_outputs_are_copied_without_the_decoder() -> None:
    output = output_of(PromptText(None, Decoder()))
    copy = pickle.loads(pickle.dumps(output))
    assert copy.prompt == "a prompt"
    assert "'a prompt'" in repr(copy)
