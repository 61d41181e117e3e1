"""The chunks of prompts in a step."""

from taco_scheduler.core.prefix_sharing import StepPrefixSharing
from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.sequence import Sequence


class PromptChunks:
    """Adds chunks of prompts to the rows of one worker's steps.

    A step cuts at most one prompt: the first one that does not fit. It gets the budget that the
    fitting prompts behind it leave, so that no budget is lost.

    Attributes:
        sharing: the blocks that the step's chunks compute.
    """

    def __init__(self, batch: Batch, blocks: BlockManager, max_cut_chunk: int) -> None:
        """`max_cut_chunk`: tokens of a cut prompt, before the budget that others leave."""
        self.sharing = StepPrefixSharing(blocks.block_bytes, blocks.block_size)
        self._batch = batch
        self._shares_prefixes = blocks.enable_prefix_caching
        self._max_cut_chunk = max_cut_chunk

    def add(self, rows: StepRows, sequence: Sequence, num_left: int, budget: int) -> int:
        """Add a row of a prompt that has `num_left` tokens to compute; returns the row's tokens."""
        num_tokens = num_left
        if num_left > budget:
            num_tokens = min(budget, self._max_cut_chunk)
            rows.cut_chunk = len(rows.chunk_slots)
            rows.cut_priority = sequence.request.priority
        rows.add_chunk(sequence.slot, num_tokens)
        if self._shares_prefixes:
            self.sharing.add(sequence, int(self._batch.num_computed[sequence.slot]))
        return num_tokens


def must_pass(sequence: Sequence, num_left: int, rows: StepRows, budget: int) -> bool:
    """Whether a prompt with `num_left` tokens to compute leaves the budget to the prompt that the
    step cuts: because it does not fit either, or has a lower priority.
    """
    if rows.cut_chunk is None:
        return False
    return num_left > budget or sequence.request.priority > rows.cut_priority
