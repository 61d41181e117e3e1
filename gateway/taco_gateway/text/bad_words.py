"""Bad words as tokens: the engine bans sequences of token ids."""

from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.sampling_params import SamplingParams


def tokenize_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """Turns `bad_words` into `bad_words_token_ids`: at the start of a text and after a space.

    Blocks: call it from a thread.
    """
    words = list(params.bad_words_token_ids or ())
    for text in params.bad_words or ():
        bare = text.lstrip(" ")
        words += [
            tokenizer.encode(variant, add_special_tokens=False) for variant in (bare, f" {bare}")
        ]
    known = [word for word in dict.fromkeys(map(tuple, words)) if word]
    return params.with_updates(bad_words=None, bad_words_token_ids=known)
