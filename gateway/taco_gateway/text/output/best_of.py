"""`best_of`: generates more sequences than the client gets, and returns the most likely ones."""

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from taco_gateway.text.output.output_processor import TextUpdate


async def best_of(
    updates: AsyncGenerator[TextUpdate, None], num_sequences: int, n: int
) -> AsyncGenerator[TextUpdate, None]:
    """Yields the `n` sequences with the highest mean log probability, one update for each.

    Args:
        updates: of all `num_sequences` sequences, with `logprob_sum`.
    """
    whole = [TextUpdate(index) for index in range(num_sequences)]
    async with aclosing(updates):
        async for text_update in updates:
            whole[text_update.index].extend(text_update)
    prompt_logprobs = whole[0].prompt_logprobs
    whole.sort(key=_mean_logprob, reverse=True)
    for index, update in enumerate(whole[:n]):
        update.index = index
        update.prompt_logprobs = prompt_logprobs if index == 0 else None
        yield update


def _mean_logprob(update: TextUpdate) -> float:
    if update.logprob_sum is None or not update.token_ids:
        return -math.inf
    return update.logprob_sum / len(update.token_ids)
