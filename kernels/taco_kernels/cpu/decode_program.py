"""Runs a model's decode steps on the CPU kernels, on arrays that every step reuses."""

from __future__ import annotations

from ctypes import PyDLL, addressof

import torch
from torch import Tensor

from taco_kernels.cpu.program_structs import Logits, Program, Step
from taco_kernels.cpu.recurrence_structs import StateRows
from taco_kernels.cpu.structs import KVCache
from taco_kernels.cpu.token_masks import NO_MASKS
from taco_kernels.library import CpuKernels
from taco_kernels.native.decode_rows import DecodeRows
from taco_kernels.native.memory import Scratch


class DecodeProgram:
    """The forward pass and the most likely tokens of `DecodeRows`, in one call of the kernels.

    It does what `ProgramRunner.forward` does with `most_likely`, and sets the addresses of all
    arrays once instead of in each step.
    """

    def __init__(
        self,
        kernels: CpuKernels,
        quick_lib: PyDLL,
        program: Program,
        cache: KVCache,
        hidden_size: int,
        rows: DecodeRows,
        scratch: Scratch,
        state_memory: Tensor | None = None,
    ) -> None:
        """The caller keeps the memory alive that `program` and `cache` point to.

        Args:
            quick_lib: the same library; keeps the GIL.
            scratch: may be that of other programs, of which one runs at a time.
            state_memory: of a program with states; that of a slot is the slot's row.
        """
        self._kernels = kernels
        self._quick_lib = quick_lib
        self._rows = rows
        self._scratch = scratch
        at = rows.addresses
        self._hidden = torch.empty((rows.max_rows, hidden_size), dtype=torch.float32)
        self._step = step = Step(cache=cache, hidden=self._hidden.data_ptr())
        step.token_ids, step.positions = at["token_ids"], at["positions"]
        step.output_rows = at["output_rows"]
        if state_memory is not None:
            self._nothing = torch.zeros(rows.max_rows, dtype=torch.int32)
            slots, nothing = at["slots"], self._nothing.data_ptr()
            memory = state_memory.data_ptr(), state_memory.shape[1]
            step.states = StateRows(*memory, slots, slots, nothing, nothing)
        batch = step.batch
        batch.query_start, batch.seq_lens = at["query_start"], at["seq_lens"]
        batch.block_tables = at["block_tables"]
        self._batch = batch
        self._logits = Logits(hidden=step.hidden, token_ids=at["sampled"], masks=NO_MASKS)
        self._program = program
        self._addresses = addressof(program), addressof(step), addressof(self._logits)

    def run(self) -> None:
        """Run the step that `rows` has begun, and write its most likely tokens.

        Raises:
            MemoryError: the step's scratch memory cannot be allocated. Nothing has run.
        """
        step, batch, logits, fields = self._step, self._batch, self._logits, self._rows.fields
        num_rows: int = fields.num_rows
        batch.num_tokens = batch.num_seqs = step.num_outputs = logits.count = num_rows
        batch.block_table_stride = fields.table_columns
        step.adapter_ids = self._rows.addresses["adapter_ids"] if fields.has_adapters else None
        logits.logprobs = self._rows.addresses["logprobs"] if fields.gives_logprobs else None
        program, step_at, logits_at = self._addresses
        quick, pool = self._quick_lib, self._kernels.pool
        num_bytes = max(
            quick.taco_program_forward_bytes(pool, program, step_at),
            quick.taco_program_logits_bytes(pool, program, logits_at),
        )
        # The logits begin when the forward pass has ended.
        step.scratch = logits.scratch = self._scratch.reserve(num_bytes)
        self._kernels.lib.taco_program_decode(pool, program, step_at, logits_at)
