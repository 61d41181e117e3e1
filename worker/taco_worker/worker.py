"""The worker: executes step plans with a model, its KV cache and its batch."""

import logging
import weakref
from collections.abc import Callable
from dataclasses import replace

import torch

from taco_common.logging import MODEL_LOADED, event
from taco_kernels.library import CpuKernels
from taco_kernels.native.cores import available_cores
from taco_kernels.native.memory import huge_page_bytes
from taco_proto.config import WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.grammars import GrammarCommand, GrammarReady
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.sampling_params import ALL_TOKENS
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_worker.backends.cpu.early_weights import EarlyWeights
from taco_worker.backends.cpu.kernel_startup import start_cpu_kernels
from taco_worker.backends.model_loading import load_step_model
from taco_worker.batch.input_batch import InputBatch
from taco_worker.batch.plan_error import PlanError
from taco_worker.batch.slot_states import SlotStates
from taco_worker.batch.token_table import make_token_table
from taco_worker.devices.byte_units import mebibytes
from taco_worker.devices.selection import find_device
from taco_worker.devices.transfers import Transfers
from taco_worker.execution.decode_steps import make_decode_steps
from taco_worker.execution.launched_step import LaunchedStep
from taco_worker.execution.model_runner import ModelRunner
from taco_worker.grammars.compiler import GrammarCompiler
from taco_worker.grammars.slot_matchers import SlotMatchers
from taco_worker.grammars.vocabulary import load_vocabulary, tokenizer_directory
from taco_worker.kv_tiers.tier_factory import (
    fit_host_tier,
    make_disk_block_store,
    make_host_block_store,
)
from taco_worker.memory.kv_sizing import resolve_max_model_len, size_kv_cache
from taco_worker.memory.state_sizing import fit_states
from taco_worker.models.config import ModelConfig
from taco_worker.models.dtypes import dtype_name
from taco_worker.models.rope import exact_length
from taco_worker.models.step_model import StepModel
from taco_worker.models.step_states import state_row_bytes
from taco_worker.output_thread import OutputThread
from taco_worker.processors.loading import ProcessorContext, import_processors, make_processors
from taco_worker.processors.slot_processors import SlotProcessors
from taco_worker.recurrent_limits import limit_recurrent
from taco_worker.speculation.grammar_drafter import GrammarDrafter
from taco_worker.speculation.speculator_factory import (
    BatchLimits,
    make_drafter,
    make_speculator,
    make_typical,
)
from taco_worker.step_metrics import StepMetrics

logger = logging.getLogger("taco.worker")

# Logits of a step on a CPU where grammars force tokens: 128 MiB.
_MAX_LOGITS = 2**25


class Worker:
    """Executes step plans one after the other. Not thread safe.

    Each plan carries an epoch. The first plan of a higher epoch empties the batch; the worker
    rejects plans of a lower epoch. After a failed step the state of the batch and the KV of that
    step's tokens are unknown. The worker then rejects all later plans of the epoch until the
    scheduler starts a new one.

    Attributes:
        is_broken: the device no longer works; only a restart of the process helps.
        step_metrics: counters and durations of the steps.
    """

    def __init__(
        self,
        config: WorkerConfig,
        start_kernels: Callable[[int | None], CpuKernels | None] = start_cpu_kernels,
        early_weights: EarlyWeights | None = None,
    ) -> None:
        """Load the model.

        Args:
            start_kernels: returns the CPU kernels for a number of threads; None means torch.
            early_weights: matrices that are packed for the CPU kernels already.

        Raises:
            ConfigurationError: the model cannot be found, read or run with this configuration.
        """
        processor_classes = import_processors(config.logits_processors)
        try:
            self._transfers = transfers = Transfers(find_device(config.device))
            transfers.enter()
            kernels = None
            if transfers.device.type == "cpu":
                for name in config.given_gpu_options:
                    logger.warning("%s has no effect on a CPU", name)
                kernels = start_kernels(config.num_threads)
                # With the CPU kernels torch needs one thread; more would compete for the cores.
                threads = 1 if kernels else available_cores().num_threads(config.num_threads)
                torch.set_num_threads(threads)
            model_config, self._model = load_step_model(config, kernels, transfers, early_weights)
            config = limit_recurrent(config, self._model.plan)
            config, num_snapshots = fit_states(config, self._model.plan, transfers)
            states = None
            if self._model.plan.states:
                states = SlotStates(config.max_num_seqs, num_snapshots)
                self._model.allocate_states(config.max_num_seqs + num_snapshots)
            if config.max_logprobs == ALL_TOKENS:
                config = replace(config, max_logprobs=self._model.plan.vocab_size)
            limits = BatchLimits(
                config.max_num_seqs,
                resolve_max_model_len(config, self._model),
                model_config.eos_token_ids,
            )
            drafter = make_drafter(config.speculation, self._model, limits)
            config = fit_host_tier(config)
            num_rows = config.max_num_seqs + num_snapshots
            state_bytes = num_rows * state_row_bytes(self._model.plan.states)
            max_model_len, num_blocks = size_kv_cache(
                config, self._model, transfers, drafter, state_bytes=state_bytes
            )
            self._model.allocate_kv(num_blocks, config.block_size, max_model_len)
            host_store = make_host_block_store(config, self._model, transfers)
        except (ValueError, torch.OutOfMemoryError) as error:
            raise ConfigurationError(str(error).partition("\n")[0]) from error
        adapters = tuple(name for name, _ in config.model.lora_modules)
        self._batch = InputBatch(
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            block_size=config.block_size,
            num_blocks=num_blocks,
            vocab_size=self._model.plan.vocab_size,
            eos_token_ids=model_config.eos_token_ids,
            tokens=make_token_table(config.max_num_seqs, max_model_len, transfers),
            gives_logprobs=config.speculation is None or not config.speculation.disable_logprobs,
            adapters=adapters,
            states=states,
        )
        vocab_size, eos_token_ids = self._model.plan.vocab_size, model_config.eos_token_ids
        self._grammars = GrammarCompiler(
            lambda: load_vocabulary(
                tokenizer_directory(config.model, model_config.files.directory),
                vocab_size,
                eos_token_ids,
                mode=config.model.tokenizer_mode,
            )
        )
        self._matchers = SlotMatchers(
            self._batch,
            self._grammars,
            transfers,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
        )
        self.step_metrics = StepMetrics()
        grammar_drafter = GrammarDrafter(
            self._matchers,
            self.step_metrics,
            max_tokens=config.max_forced_tokens,
            max_rows=_max_sampled_rows(config, transfers, vocab_size),
            end_tokens=frozenset(eos_token_ids),
            # Drafts of others follow the last token, so that the host waits for it.
            knows_tokens=config.speculation is not None or not transfers.overlaps,
        )
        self._speculator = make_speculator(
            config.speculation, drafter, self._model, self._batch, grammar_drafter
        )
        context = ProcessorContext(
            str(model_config.files.directory), vocab_size, eos_token_ids, transfers.device
        )
        processors = make_processors(processor_classes, context)
        self._processors = SlotProcessors(self._batch, transfers, processors)
        self._runner = ModelRunner(
            self._model,
            self._batch,
            transfers,
            host_store,
            self._speculator,
            make_typical(config.speculation),
            self._matchers,
            grammar_drafter,
            self._processors,
            make_decode_steps(self._model, self._batch),
        )
        # Last: its directory stays locked, which would be a failed start's too.
        try:
            self._disk_store = make_disk_block_store(
                config, model_config.files, self._model, host_store, max_model_len
            )
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        self.info = replace(
            _describe(config, model_config, max_model_len, num_blocks),
            num_host_blocks=host_store.num_blocks,
            num_disk_blocks=self._disk_store.num_blocks if self._disk_store else 0,
            max_forced_tokens=config.max_forced_tokens,
            logits_processors=tuple(processors),
            adapters=adapters,
            is_recurrent=states is not None,
            num_state_snapshots=num_snapshots,
        )
        if self._speculator is not None:
            self.info = replace(
                self.info,
                max_draft_tokens=self._speculator.max_draft_tokens,
                drafts_itself=self._speculator.drafter is not None,
                needs_history=drafter is not None and drafter.needs_history,
            )
        self._output_thread = OutputThread() if transfers.overlaps else None
        if self._disk_store is not None:
            self._close_disk_store = weakref.finalize(self, self._disk_store.close)
            self._close_disk_store.atexit = False
        self._epoch = 0
        self._failed = False
        self.is_broken = False
        _log_start(self.info, self._model)
        _warn_of_scaled_positions(self.info.max_model_len, model_config)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step. A failed step does not raise: the output's `error` says why it failed."""
        begun = self.step_metrics.begin(plan)
        return self._wait(plan, self._launch(plan), begun)

    def submit(self, plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None:
        """Launch one step. `deliver` receives its output; outputs keep the order of the plans.

        On a GPU `submit` returns before the step is done, so that the next step can be launched
        at once. `deliver` is then called in another thread.
        """
        if self._output_thread is None:
            deliver(self.execute(plan))
            return
        begun = self.step_metrics.begin(plan)
        launched = self._launch(plan)
        self._output_thread.put(lambda: deliver(self._wait(plan, launched, begun)))
        try:
            self.tune(between_steps=True)
        except Exception:  # the step was launched: do not report it as failed
            logger.exception("capturing a CUDA graph failed")

    def close(self) -> None:
        """Release the disk tier's directory and drop later commands to it. Idempotent.

        Garbage collection of the worker closes it too.
        """
        if self._disk_store is not None:
            self._close_disk_store()

    def drain(self) -> None:
        """Return once every output has been delivered."""
        if self._output_thread is not None:
            self._output_thread.join()

    @torch.inference_mode()
    def tune(self, *, between_steps: bool = False) -> bool:
        """Do one piece of preparation that makes later steps faster, such as a CUDA graph capture.

        Args:
            between_steps: prepare only what the current steps need.

        Returns:
            Whether anything was prepared.
        """
        self._transfers.enter()
        return not self.is_broken and self._model.tune(between_steps=between_steps)

    def memory_bytes(self) -> dict[str, int]:
        """Memory by use, in bytes. Thread safe; does not wait for the device."""
        info, model = self.info, self._model
        sizes = {
            "weights": model.weight_bytes,
            "kv_cache": info.num_blocks * model.kv_block_bytes(info.block_size),
            "states": (info.max_num_seqs + info.num_state_snapshots)
            * state_row_bytes(model.plan.states),
            "host_kv_cache": info.num_host_blocks * model.kv_block_bytes(info.block_size),
        }
        return sizes | self._transfers.memory_bytes()

    @property
    def num_graphs(self) -> int:
        """Number of captured CUDA graphs."""
        return self._model.num_graphs

    def store(self, command: StoreCommand, report: Callable[[StoreReport], None]) -> None:
        """Pass a command to the disk tier; `report` is called in another thread.

        Before the first command after a `reset`, even an empty one, the tier reports the blocks
        that it holds.
        """
        if self._disk_store is not None:
            self._disk_store.submit(command, report)
            return
        keys = [block.key for _, block in command.writes] + [key for key, _ in command.reads]
        report(StoreReport(is_complete=True, failed=tuple(keys)))

    def set_grammars(self, command: GrammarCommand, report: Callable[[GrammarReady], None]) -> None:
        """Release and compile grammars; `report` is called in another thread for each to compile.

        A plan may name a grammar after the command that compiles it, and before it is ready.
        """
        self._grammars.apply(command, report)

    def reset(self) -> None:
        """Forget all sequences, the epoch and the disk tier's commands: a new stream begins."""
        self.drain()  # running steps may still copy to host blocks
        if self._disk_store is not None:
            self._disk_store.reset()
        self._grammars.reset()
        self._begin_epoch(0)

    def _begin_epoch(self, epoch: int) -> None:
        self._batch.clear()
        self._matchers.clear()
        self._processors.clear()
        if self._speculator is not None:
            self._speculator.clear()
        self._epoch = epoch
        self._failed = False

    def _launch(self, plan: StepPlan) -> LaunchedStep | StepOutput:
        """Return the launched step, or the output of a plan that was rejected or failed."""
        self._transfers.enter()
        if plan.epoch < self._epoch:
            return _failure(plan, f"epoch {plan.epoch} has ended; the current is {self._epoch}")
        if plan.epoch > self._epoch:
            self._begin_epoch(plan.epoch)
        if self._failed:
            return _failure(plan, f"an earlier step of epoch {plan.epoch} failed")
        try:
            return self._runner.launch(plan)
        except PlanError as error:
            logger.error("step %d of epoch %d: %s", plan.step_id, plan.epoch, error)
            self._failed = True
            return _failure(plan, f"invalid plan: {error}")
        except Exception as error:
            return self._note_failure(plan, error)

    def _wait(
        self, plan: StepPlan, launched: LaunchedStep | StepOutput, begun: float
    ) -> StepOutput:
        output = launched if isinstance(launched, StepOutput) else self._output_of(plan, launched)
        self.step_metrics.end(begun, output)
        return output

    def _output_of(self, plan: StepPlan, launched: LaunchedStep) -> StepOutput:
        try:
            return launched.wait()
        except Exception as error:
            return self._note_failure(plan, error)

    def _note_failure(self, plan: StepPlan, error: Exception) -> StepOutput:
        logger.exception("step %d of epoch %d failed", plan.step_id, plan.epoch)
        # A step of an earlier epoch may fail late, in the output thread.
        self._failed = self._failed or plan.epoch == self._epoch
        self.is_broken = self.is_broken or self._transfers.is_lost()
        return _failure(plan, f"{type(error).__name__}: {error}")


def _max_sampled_rows(config: WorkerConfig, transfers: Transfers, vocab_size: int) -> int:
    """Tokens that a step may sample: on a GPU the number that memory was measured for."""
    if transfers.overlaps:
        return config.max_num_seqs
    return max(config.max_num_seqs, _MAX_LOGITS // vocab_size)


def _describe(
    config: WorkerConfig, model: ModelConfig, max_model_len: int, num_blocks: int
) -> WorkerInfo:
    return WorkerInfo(
        name=config.name,
        model=config.model.served_name,
        max_model_len=max_model_len,
        vocab_size=model.plan.vocab_size,
        eos_token_ids=model.eos_token_ids,
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_logprobs=config.max_logprobs,
        default_sampling=model.sampling_defaults,
    )


def _log_start(info: WorkerInfo, model: StepModel) -> None:
    logger.info(
        "%s on %s: weights %s, KV cache %s (%d blocks, %d tokens), %s in huge pages, %d sequences "
        "of at most %d tokens; %d blocks in the host tier, %d in the disk tier",
        info.model,
        model.description,
        mebibytes(model.weight_bytes),
        mebibytes(info.num_blocks * model.kv_block_bytes(info.block_size)),
        info.num_blocks,
        info.num_blocks * info.block_size,
        mebibytes(huge_page_bytes()),
        info.max_num_seqs,
        info.max_model_len,
        info.num_host_blocks,
        info.num_disk_blocks,
        extra=event(
            MODEL_LOADED,
            {
                "description": model.description,
                "kv_tokens": info.num_blocks * info.block_size,
                "kv_dtype": dtype_name(model.kv_format.dtype),
                "weight_bytes": model.weight_bytes,
            },
        ),
    )


def _warn_of_scaled_positions(max_model_len: int, model: ModelConfig) -> None:
    """Warn if short sequences get other positions than in the model's published code."""
    tables = model.plan.rope_tables.values()
    lengths = [exact_length(table.rotary, max_model_len) for table in tables]
    if length := min((one for one in lengths if one is not None), default=None):
        logger.warning(
            "rotary positions are scaled for %d tokens, also in shorter sequences; published code "
            "of %s scales them by a sequence's length: --max-model-len %d gives its results",
            max_model_len,
            model.architecture,
            length,
        )


def _failure(plan: StepPlan, error: str) -> StepOutput:
    return StepOutput(epoch=plan.epoch, step_id=plan.step_id, error=error)
