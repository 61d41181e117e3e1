"""Converters between the dataclasses of the scheduler's contract and their messages.

Fields of the same name are copied by a `MessageCodec`. This module holds only what names alone do
not say: defaults that do not travel, limits of texts, durations, and columns of errors.
"""

from typing import Any

import numpy as np

from taco_proto import scheduler_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION
from taco_proto.convert_sampling import (
    sampling_columns_from_pb,
    sampling_columns_to_pb,
    sampling_from_pb,
    sampling_to_pb,
)
from taco_proto.grammars import GrammarTable
from taco_proto.licenses import (
    MAX_REASON_CHARS,
    NEEDS_NO_LICENSE,
    LicenseState,
    WorkerLicense,
)
from taco_proto.log_text import MAX_NAME_CHARS, MAX_REQUEST_ID_CHARS, one_line
from taco_proto.logprobs import LogprobColumns
from taco_proto.message_codec import Converter, MessageCodec
from taco_proto.requests import ANYBODY, GenerateRequest, ModelInfo, PrefixPin, Tenant
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import (
    BlockCopies,
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

# --------------------------------------------------------- gateway to scheduler


def _decode_tenant(message: pb.Submit) -> Tenant:
    return _TENANT.from_pb(message.tenant) if message.HasField("tenant") else ANYBODY


_TENANT = MessageCodec(Tenant, pb.Tenant)
_SUBMIT = MessageCodec(
    GenerateRequest,
    pb.Submit,
    nested=(
        MessageCodec(PrefixPin, pb.PrefixPin),
        Converter(SamplingParams, sampling_to_pb, sampling_from_pb),
    ),
    encode={"tenant": lambda tenant: None if tenant is ANYBODY else _TENANT.to_pb(tenant)},
    decode={
        "request_id": lambda message: one_line(message.request_id, MAX_REQUEST_ID_CHARS),
        "tenant": _decode_tenant,
        "deadline": lambda message: None,  # `submit_from_pb` computes it
        "grammar": lambda message: None,  # `submit_from_pb` looks it up
    },
)


def submit_to_pb(
    request: GenerateRequest, now: float, grammars: GrammarTable | None = None
) -> pb.Submit:
    """The message of a request.

    Args:
        now: when the message is sent, in seconds of `time.monotonic`.
        grammars: what the stream has carried; None: nothing.
    """
    deadline, grammar = request.deadline, request.grammar
    columns: dict[str, Any] = {"timeout_seconds": None if deadline is None else deadline - now}
    if grammar is not None:
        columns["grammar_hash"] = grammar.hash
        table = GrammarTable() if grammars is None else grammars
        columns["grammar_text"] = table.text_to_send(grammar)
    return _SUBMIT.to_pb(request, **columns)


def submit_from_pb(
    message: pb.Submit, now: float, grammars: GrammarTable | None = None
) -> GenerateRequest:
    """The request of a message.

    Args:
        now: when the message arrived, in seconds of `time.monotonic`.
        grammars: what the stream has carried; None: nothing.

    Raises:
        InvalidParameterError: a sampling parameter is out of range.
        ValueError: columns of sampling parameters differ in length, or the grammar is unknown.
    """
    has_timeout = message.HasField("timeout_seconds")
    deadline = now + message.timeout_seconds if has_timeout else None
    grammar = None
    if message.grammar_hash:
        table = GrammarTable() if grammars is None else grammars
        grammar = table.receive(message.grammar_hash, message.grammar_text)
    return _SUBMIT.from_pb(message, deadline=deadline, grammar=grammar)


# --------------------------------------------------------- scheduler to gateway

_MODEL_INFO = MessageCodec(ModelInfo, pb.ModelInfo)
model_info_from_pb = _MODEL_INFO.from_pb


def model_info_to_pb(info: ModelInfo) -> pb.ModelInfo:
    return _MODEL_INFO.to_pb(info, protocol_version=PROTOCOL_VERSION)


def logprobs_to_pb(columns: LogprobColumns) -> pb.LogprobColumns:
    return pb.LogprobColumns(
        num_entries=columns.num_entries.astype("<i4", copy=False).tobytes(),
        token_ids=columns.token_ids.astype("<i4", copy=False).tobytes(),
        logprobs=columns.logprobs.astype("<f4", copy=False).tobytes(),
        ranks=columns.ranks.astype("<i4", copy=False).tobytes(),
    )


def logprobs_from_pb(columns: pb.LogprobColumns) -> LogprobColumns:
    return LogprobColumns(
        num_entries=np.frombuffer(columns.num_entries, "<i4"),
        token_ids=np.frombuffer(columns.token_ids, "<i4"),
        logprobs=np.frombuffer(columns.logprobs, "<f4"),
        ranks=np.frombuffer(columns.ranks, "<i4"),
    )


# --------------------------------------------------------- worker and scheduler


def worker_license_to_pb(license_: WorkerLicense) -> pb.WorkerLicense:
    state = pb.LicenseState.Name(license_.state.value)
    return pb.WorkerLicense(state=state, reason=license_.reason)


def worker_license_from_pb(message: pb.WorkerHello | pb.Heartbeat) -> WorkerLicense:
    """The license of a worker; one that sends none, because it is older, needs none."""
    if not message.HasField("license"):
        return NEEDS_NO_LICENSE
    state, reason = message.license.state, one_line(message.license.reason, MAX_REASON_CHARS)
    # A state that this version does not know is treated as a missing license.
    if state not in tuple(LicenseState):
        return WorkerLicense(LicenseState.MISSING, reason)
    return WorkerLicense(LicenseState(state), reason)


_WORKER_INFO = MessageCodec(
    WorkerInfo,
    pb.WorkerHello,
    encode={"license": worker_license_to_pb},
    decode={
        "name": lambda message: one_line(message.name, MAX_NAME_CHARS),
        "license": worker_license_from_pb,
    },
)
worker_info_from_pb = _WORKER_INFO.from_pb


def worker_info_to_pb(info: WorkerInfo) -> pb.WorkerHello:
    return _WORKER_INFO.to_pb(info, protocol_version=PROTOCOL_VERSION)


def _encode_counts(counts: IntArray) -> Any:
    """One token a row, the usual case, does not travel."""
    return () if (counts == 1).all() else counts.tolist()


def _decode_counts(message: pb.StepPlan) -> IntArray:
    if message.num_tokens:
        return np.array(message.num_tokens, np.int32)
    return np.ones(len(message.slots), np.int32)


_JOINED = MessageCodec(
    JoinedSequences,
    pb.JoinedSequences,
    encode={"sampling": sampling_columns_to_pb},
    decode={"sampling": lambda message: sampling_columns_from_pb(message.sampling)},
)
_STEP_PLAN = MessageCodec(
    StepPlan,
    pb.StepPlan,
    nested=(
        _JOINED,
        MessageCodec(PlannedDrafts, pb.PlannedDrafts),
        MessageCodec(BlockCopies, pb.BlockCopies),
    ),
    encode={"num_tokens": _encode_counts},
    decode={"num_tokens": _decode_counts},
)
step_plan_to_pb = _STEP_PLAN.to_pb
step_plan_from_pb = _STEP_PLAN.from_pb


def _decode_row_errors(message: pb.StepOutput) -> tuple[RowError, ...]:
    if not message.row_error_slots:
        return ()
    columns = zip(
        message.row_error_slots, message.row_error_codes, message.row_error_messages, strict=True
    )
    return tuple(RowError(slot, _row_error_code(code), text) for slot, code, text in columns)


def _row_error_code(code: int) -> RowErrorCode:
    return RowErrorCode(code) if code in _ROW_ERROR_CODES else RowErrorCode.UNKNOWN


_STEP_OUTPUT = MessageCodec(
    StepOutput,
    pb.StepOutput,
    nested=(Converter(LogprobColumns, logprobs_to_pb, logprobs_from_pb),),
    decode={
        "row_errors": _decode_row_errors,
        "error": lambda message: one_line(message.error),
    },
)


def step_output_to_pb(output: StepOutput) -> pb.StepOutput:
    errors = output.row_errors
    if not errors:
        return _STEP_OUTPUT.to_pb(output)
    return _STEP_OUTPUT.to_pb(
        output,
        row_error_slots=[error.slot for error in errors],
        row_error_codes=[error.code.value for error in errors],
        row_error_messages=[error.message for error in errors],
    )


def step_output_from_pb(message: pb.StepOutput) -> StepOutput:
    """Raises:
    ValueError: the columns of row errors differ in length.
    OverflowError: a slot or a token is no signed 32-bit integer.
    """
    return _STEP_OUTPUT.from_pb(message)
