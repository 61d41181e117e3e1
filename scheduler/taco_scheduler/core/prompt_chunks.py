"""The chunks of prompts in a step."""

from taco_scheduler.core.prefix_sharing import StepPrefixSharing
from taco_scheduler.core.snapshot_sharing import StepSnapshotSharing
from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.recurrent_block_manager import RecurrentBlockManager
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.sequence import Sequence


class PromptChunks:
    """Adds chunks of prompts to the rows of one worker's steps.

    A step cuts at most one prompt: the first one that does not fit. It gets the budget that the
    fitting prompts behind it leave, so that no budget is lost.

    A chunk of a recurrent model ends early rather than save two states.

    Attributes:
        sharing: the blocks that the step's chunks compute.
    """

    def __init__(
        self,
        batch: Batch,
        blocks: BlockManager,
        max_num_batched_tokens: int,
        long_prefill_token_threshold: int | None,
    ) -> None:
        """
        Args:
            max_num_batched_tokens: token budget of a step.
            long_prefill_token_threshold: tokens of a step for a prompt that does not fit in the
                step, before shorter prompts behind it get theirs. The prompt also gets the tokens
                that these leave. 0: it gets the whole budget first; None: a quarter of the budget.
        """
        if long_prefill_token_threshold is None:
            long_prefill_token_threshold = max(1, max_num_batched_tokens // 4)
        is_recurrent = isinstance(blocks, RecurrentBlockManager)
        sharing = StepSnapshotSharing if is_recurrent else StepPrefixSharing
        self.sharing = sharing(blocks.block_bytes, blocks.block_size)
        self._batch = batch
        self._shares_prefixes = blocks.enable_prefix_caching
        self._max_cut_chunk = long_prefill_token_threshold or max_num_batched_tokens

    def add(self, rows: StepRows, sequence: Sequence, num_left: int, budget: int) -> int:
        """Add a row of a prompt that has `num_left` tokens to compute; returns the row's tokens."""
        num_tokens = num_left
        if num_left > budget:
            num_tokens = min(budget, self._max_cut_chunk)
        num_saved = self._up_to_save(sequence, num_tokens)
        if num_saved < num_tokens:
            num_tokens = num_saved
        elif num_left > budget:
            rows.cut_chunk = len(rows.chunk_slots)
            rows.cut_priority = sequence.request.priority
        rows.add_chunk(sequence.slot, num_tokens)
        if self._shares_prefixes:
            self.sharing.add(sequence, int(self._batch.num_computed[sequence.slot]))
        return num_tokens

    def use_rest(self, rows: StepRows, budget: int) -> None:
        """Give the rest of the budget to the chunk that the step cuts, if it cuts one."""
        if rows.cut_chunk is not None:
            sequence = self._batch.owner(rows.chunk_slots[rows.cut_chunk])
            num_tokens = rows.chunk_tokens[rows.cut_chunk] + budget
            rows.chunk_tokens[rows.cut_chunk] = self._up_to_save(sequence, num_tokens)

    def _up_to_save(self, sequence: Sequence, num_tokens: int) -> int:
        """The tokens of a chunk that saves at most one state."""
        if sequence.table is None or sequence.table.states is None:
            return num_tokens
        num_computed = int(self._batch.num_computed[sequence.slot])
        return sequence.table.states.limit_chunk(num_computed, num_tokens)


def must_pass(sequence: Sequence, num_left: int, rows: StepRows, budget: int) -> bool:
    """Whether a prompt with `num_left` tokens to compute leaves the budget to the prompt that the
    step cuts: because it does not fit either, or has a lower priority.
    """
    if rows.cut_chunk is None:
        return False
    return num_left > budget or sequence.request.priority > rows.cut_priority
