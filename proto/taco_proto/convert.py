"""Protobuf messages to dataclasses and back: the only place that knows both."""

import numpy as np

from taco_proto import scheduler_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION
from taco_proto.convert_kv_tiers import block_copies_from_pb, block_copies_to_pb
from taco_proto.convert_sampling import (
    sampling_columns_from_pb,
    sampling_columns_to_pb,
    sampling_from_pb,
    sampling_to_pb,
)
from taco_proto.licenses import (
    MAX_REASON_CHARS,
    NEEDS_NO_LICENSE,
    LicenseState,
    WorkerLicense,
)
from taco_proto.log_text import MAX_NAME_CHARS, MAX_REQUEST_ID_CHARS, one_line
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import (
    ANYBODY,
    GenerateRequest,
    ModelInfo,
    OutputBatch,
    PrefixPin,
    RequestError,
    Tenant,
)
from taco_proto.steps import (
    EMPTY,
    IntArray,
    JoinedSequences,
    PlannedDrafts,
    RowError,
    RowErrorCode,
    StepOutput,
    StepPlan,
    WorkerInfo,
)

_ROW_ERROR_CODES = frozenset(RowErrorCode)


def _ints(values: object) -> IntArray:
    return np.array(values, dtype=np.int32) if values else EMPTY


# ------------------------------------------------------------ gateway → scheduler


def submit_to_pb(request: GenerateRequest, now: float) -> pb.Submit:
    """`now`: when the message is sent, in seconds of `time.monotonic`."""
    deadline = request.deadline
    return pb.Submit(
        handle=request.handle,
        request_id=request.request_id,
        token_ids=request.token_ids,
        emitted_token_ids=request.emitted_token_ids,
        finished_indexes=request.finished_indexes,
        has_paid=request.has_paid,
        sampling=sampling_to_pb(request.sampling),
        priority=request.priority,
        timeout_seconds=None if deadline is None else deadline - now,
        tenant=_tenant_to_pb(request.tenant),
        adapter=request.adapter,
        cache_salt=request.cache_salt,
        pins=[pb.PrefixPin(num_tokens=p.num_tokens, seconds=p.seconds) for p in request.pins],
        prompt_cache_key=request.prompt_cache_key,
    )


def submit_from_pb(message: pb.Submit, now: float) -> GenerateRequest:
    """`now`: when the message arrived, in seconds of `time.monotonic`.

    Raises:
    InvalidParameterError: a sampling parameter is out of range.
    """
    return GenerateRequest(
        handle=message.handle,
        request_id=one_line(message.request_id, MAX_REQUEST_ID_CHARS),
        token_ids=message.token_ids,
        emitted_token_ids=tuple(message.emitted_token_ids),
        finished_indexes=tuple(message.finished_indexes),
        has_paid=message.has_paid,
        sampling=sampling_from_pb(message.sampling),
        priority=message.priority,
        deadline=now + message.timeout_seconds if message.HasField("timeout_seconds") else None,
        tenant=_tenant_from_pb(message.tenant) if message.HasField("tenant") else ANYBODY,
        adapter=message.adapter,
        cache_salt=message.cache_salt,
        pins=tuple(PrefixPin(pin.num_tokens, pin.seconds) for pin in message.pins),
        prompt_cache_key=message.prompt_cache_key,
    )


def _tenant_to_pb(tenant: Tenant) -> pb.Tenant | None:
    if tenant is ANYBODY:
        return None
    return pb.Tenant(
        name=tenant.name,
        weight=tenant.weight,
        max_requests_per_minute=tenant.max_requests_per_minute,
        max_tokens_per_minute=tenant.max_tokens_per_minute,
        max_concurrent_requests=tenant.max_concurrent_requests,
    )


def _tenant_from_pb(message: pb.Tenant) -> Tenant:
    return Tenant(
        name=message.name,
        weight=message.weight,
        max_requests_per_minute=message.max_requests_per_minute,
        max_tokens_per_minute=message.max_tokens_per_minute,
        max_concurrent_requests=message.max_concurrent_requests,
    )


# ------------------------------------------------------------ scheduler → gateway


def model_info_to_pb(info: ModelInfo) -> pb.ModelInfo:
    return pb.ModelInfo(
        model=info.model,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_logprobs=info.max_logprobs,
        default_sampling=info.default_sampling,
        protocol_version=PROTOCOL_VERSION,
        ready=info.ready,
        license_problem=info.license_problem,
        draining=info.draining,
    )


def model_info_from_pb(message: pb.ModelInfo) -> ModelInfo:
    return ModelInfo(
        model=message.model,
        max_model_len=message.max_model_len,
        vocab_size=message.vocab_size,
        eos_token_ids=tuple(message.eos_token_ids),
        block_size=message.block_size,
        num_blocks=message.num_blocks,
        max_logprobs=message.max_logprobs,
        default_sampling=dict(message.default_sampling),
        ready=message.ready,
        license_problem=message.license_problem,
        draining=message.draining,
    )


def output_batch_to_pb(batch: OutputBatch) -> pb.OutputBatch:
    # A column that says the same of every row costs its bytes, and both sides' time, for nothing.
    return pb.OutputBatch(
        handles=batch.handles,
        indexes=_unless_all(batch.indexes, 0),
        num_tokens=_unless_all(batch.num_tokens, 1),
        token_ids=batch.token_ids,
        finish_reasons=_unless_all(batch.finish_reasons, 0),
        stop_token_ids=_unless_all(batch.stop_token_ids, -1),
        num_cached_tokens=_unless_all(batch.num_cached_tokens, 0),
        logprobs=_logprobs_to_pb(batch.logprobs),
        prompt_logprob_handles=batch.prompt_logprob_handles,
        prompt_logprob_positions=batch.prompt_logprob_positions,
        prompt_logprobs=_logprobs_to_pb(batch.prompt_logprobs),
        error_handles=[error.handle for error in batch.errors],
        error_codes=[error.code for error in batch.errors],
        error_messages=[error.message for error in batch.errors],
        error_retry_after=[error.retry_after for error in batch.errors],
        error_reasons=[error.reason for error in batch.errors],
        started_handles=batch.started_handles,
        queue_seconds=batch.queue_seconds,
    )


def output_batch_from_pb(message: pb.OutputBatch) -> OutputBatch:
    errors = zip(
        message.error_handles,
        message.error_codes,
        message.error_messages,
        message.error_retry_after,
        message.error_reasons or [""] * len(message.error_handles),  # older peers send none
        strict=True,
    )
    num_rows = len(message.handles)
    return OutputBatch(
        handles=list(message.handles),
        indexes=list(message.indexes) or [0] * num_rows,
        num_tokens=list(message.num_tokens) or [1] * num_rows,
        token_ids=list(message.token_ids),
        finish_reasons=list(message.finish_reasons) or [0] * num_rows,
        stop_token_ids=list(message.stop_token_ids) or [-1] * num_rows,
        num_cached_tokens=list(message.num_cached_tokens) or [0] * num_rows,
        logprobs=_logprobs_from_pb(message, "logprobs"),
        prompt_logprob_handles=list(message.prompt_logprob_handles),
        prompt_logprob_positions=list(message.prompt_logprob_positions),
        prompt_logprobs=_logprobs_from_pb(message, "prompt_logprobs"),
        errors=[RequestError(*row) for row in errors],
        started_handles=list(message.started_handles),
        queue_seconds=list(message.queue_seconds),
    )


def _unless_all(column: list[int], value: int) -> list[int]:
    """The column; empty if every row has the same, usual value."""
    return [] if column.count(value) == len(column) else column


def _logprobs_to_pb(columns: LogprobColumns | None) -> pb.LogprobColumns | None:
    if columns is None:
        return None
    return pb.LogprobColumns(
        num_entries=columns.num_entries.astype("<i4", copy=False).tobytes(),
        token_ids=columns.token_ids.astype("<i4", copy=False).tobytes(),
        logprobs=columns.logprobs.astype("<f4", copy=False).tobytes(),
        ranks=columns.ranks.astype("<i4", copy=False).tobytes(),
    )


def _logprobs_from_pb(message: pb.OutputBatch | pb.StepOutput, name: str) -> LogprobColumns | None:
    if not message.HasField(name):
        return None
    columns: pb.LogprobColumns = getattr(message, name)
    return LogprobColumns(
        num_entries=np.frombuffer(columns.num_entries, "<i4"),
        token_ids=np.frombuffer(columns.token_ids, "<i4"),
        logprobs=np.frombuffer(columns.logprobs, "<f4"),
        ranks=np.frombuffer(columns.ranks, "<i4"),
    )


# ------------------------------------------------------------ worker ↔ scheduler


def worker_info_to_pb(info: WorkerInfo) -> pb.WorkerHello:
    return pb.WorkerHello(
        protocol_version=PROTOCOL_VERSION,
        name=info.name,
        model=info.model,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_logprobs=info.max_logprobs,
        default_sampling=info.default_sampling,
        max_draft_tokens=info.max_draft_tokens,
        drafts_itself=info.drafts_itself,
        num_host_blocks=info.num_host_blocks,
        num_disk_blocks=info.num_disk_blocks,
        license=worker_license_to_pb(info.license),
        needs_history=info.needs_history,
    )


def worker_info_from_pb(message: pb.WorkerHello) -> WorkerInfo:
    return WorkerInfo(
        name=one_line(message.name, MAX_NAME_CHARS),
        model=message.model,
        max_model_len=message.max_model_len,
        vocab_size=message.vocab_size,
        eos_token_ids=tuple(message.eos_token_ids),
        block_size=message.block_size,
        num_blocks=message.num_blocks,
        max_num_seqs=message.max_num_seqs,
        max_num_batched_tokens=message.max_num_batched_tokens,
        max_logprobs=message.max_logprobs,
        default_sampling=dict(message.default_sampling),
        max_draft_tokens=message.max_draft_tokens,
        drafts_itself=message.drafts_itself,
        num_host_blocks=message.num_host_blocks,
        num_disk_blocks=message.num_disk_blocks,
        license=worker_license_from_pb(message),
        needs_history=message.needs_history,
    )


def worker_license_to_pb(license_: WorkerLicense) -> pb.WorkerLicense:
    state = pb.LicenseState.Name(license_.state.value)
    return pb.WorkerLicense(state=state, reason=license_.reason)


def worker_license_from_pb(message: pb.WorkerHello | pb.Heartbeat) -> WorkerLicense:
    """Of a worker that knows no licenses: it needs none."""
    if not message.HasField("license"):
        return NEEDS_NO_LICENSE
    state, reason = message.license.state, one_line(message.license.reason, MAX_REASON_CHARS)
    # A state that this side does not know is one of a later version, and none to rely on.
    if state not in tuple(LicenseState):
        return WorkerLicense(LicenseState.MISSING, reason)
    return WorkerLicense(LicenseState(state), reason)


def step_plan_to_pb(plan: StepPlan) -> pb.StepPlan:
    all_ones = bool((plan.num_tokens == 1).all())
    return pb.StepPlan(
        epoch=plan.epoch,
        step_id=plan.step_id,
        left_slots=plan.left_slots.tolist(),
        joined=None if plan.joined is None else _joined_to_pb(plan.joined),
        appended_slots=plan.appended_slots.tolist(),
        appended_blocks=plan.appended_blocks.tolist(),
        slots=plan.slots.tolist(),
        num_tokens=() if all_ones else plan.num_tokens.tolist(),
        max_drafts=plan.max_drafts.tolist(),
        drafts=None if plan.drafts is None else _drafts_to_pb(plan.drafts),
        copies=None if plan.copies is None else block_copies_to_pb(plan.copies),
        is_announced=plan.is_announced,
    )


def step_plan_from_pb(message: pb.StepPlan) -> StepPlan:
    slots = _ints(message.slots)
    num_tokens = _ints(message.num_tokens) if message.num_tokens else np.ones_like(slots)
    return StepPlan(
        epoch=message.epoch,
        step_id=message.step_id,
        slots=slots,
        num_tokens=num_tokens,
        left_slots=_ints(message.left_slots),
        joined=_joined_from_pb(message.joined) if message.HasField("joined") else None,
        appended_slots=_ints(message.appended_slots),
        appended_blocks=_ints(message.appended_blocks),
        max_drafts=_ints(message.max_drafts),
        drafts=_drafts_from_pb(message.drafts) if message.HasField("drafts") else None,
        copies=block_copies_from_pb(message.copies) if message.HasField("copies") else None,
        is_announced=message.is_announced,
    )


def _drafts_to_pb(drafts: PlannedDrafts) -> pb.PlannedDrafts:
    return pb.PlannedDrafts(
        slots=drafts.slots.tolist(),
        num_tokens=drafts.num_tokens.tolist(),
        num_drafts=drafts.num_drafts.tolist(),
        token_ids=drafts.token_ids.tolist(),
    )


def _drafts_from_pb(message: pb.PlannedDrafts) -> PlannedDrafts:
    return PlannedDrafts(
        slots=_ints(message.slots),
        num_tokens=_ints(message.num_tokens),
        num_drafts=_ints(message.num_drafts),
        token_ids=_ints(message.token_ids),
    )


def _joined_to_pb(joined: JoinedSequences) -> pb.JoinedSequences:
    return pb.JoinedSequences(
        slots=joined.slots.tolist(),
        num_prompt_tokens=joined.num_prompt_tokens.tolist(),
        num_tokens=joined.num_tokens.tolist(),
        num_computed_tokens=joined.num_computed_tokens.tolist(),
        token_ids=joined.token_ids.astype("<i4", copy=False).tobytes(),
        num_omitted_tokens=joined.num_omitted_tokens.tolist(),
        num_blocks=joined.num_blocks.tolist(),
        block_ids=joined.block_ids.astype("<i4", copy=False).tobytes(),
        sampling=sampling_columns_to_pb(joined.sampling),
        cache_salts=joined.cache_salts,
    )


def _joined_from_pb(message: pb.JoinedSequences) -> JoinedSequences:
    return JoinedSequences(
        slots=_ints(message.slots),
        num_prompt_tokens=_ints(message.num_prompt_tokens),
        num_tokens=_ints(message.num_tokens),
        num_computed_tokens=_ints(message.num_computed_tokens),
        token_ids=np.frombuffer(message.token_ids, dtype="<i4"),
        num_omitted_tokens=_ints(message.num_omitted_tokens),
        num_blocks=_ints(message.num_blocks),
        block_ids=np.frombuffer(message.block_ids, dtype="<i4"),
        sampling=sampling_columns_from_pb(message.sampling),
        cache_salts=tuple(message.cache_salts),
    )


def step_output_to_pb(output: StepOutput) -> pb.StepOutput:
    return pb.StepOutput(
        epoch=output.epoch,
        step_id=output.step_id,
        slots=output.slots.tolist(),
        token_ids=output.token_ids.tolist(),
        num_tokens=output.num_tokens.tolist(),
        num_drafts=output.num_drafts.tolist(),
        num_invalid_drafts=output.num_invalid_drafts,
        logprobs=_logprobs_to_pb(output.logprobs),
        prompt_logprob_slots=output.prompt_logprob_slots.tolist(),
        prompt_logprob_positions=output.prompt_logprob_positions.tolist(),
        prompt_logprobs=_logprobs_to_pb(output.prompt_logprobs),
        row_error_slots=[error.slot for error in output.row_errors],
        row_error_codes=[error.code.value for error in output.row_errors],
        row_error_messages=[error.message for error in output.row_errors],
        error=output.error,
    )


def step_output_from_pb(message: pb.StepOutput) -> StepOutput:
    """Raises:
    ValueError: the columns of row errors differ in length.
    """
    return StepOutput(
        epoch=message.epoch,
        step_id=message.step_id,
        slots=_ints(message.slots),
        token_ids=_ints(message.token_ids),
        num_tokens=_ints(message.num_tokens),
        num_drafts=_ints(message.num_drafts),
        num_invalid_drafts=message.num_invalid_drafts,
        logprobs=_logprobs_from_pb(message, "logprobs"),
        prompt_logprob_slots=_ints(message.prompt_logprob_slots),
        prompt_logprob_positions=_ints(message.prompt_logprob_positions),
        prompt_logprobs=_logprobs_from_pb(message, "prompt_logprobs"),
        row_errors=_row_errors_from_pb(message) if message.row_error_slots else (),
        error=one_line(message.error),
    )


def _row_errors_from_pb(message: pb.StepOutput) -> tuple[RowError, ...]:
    columns = zip(
        message.row_error_slots, message.row_error_codes, message.row_error_messages, strict=True
    )
    return tuple(RowError(slot, _row_error_code(code), text) for slot, code, text in columns)


def _row_error_code(code: int) -> RowErrorCode:
    return RowErrorCode(code) if code in _ROW_ERROR_CODES else RowErrorCode.UNKNOWN
