"""Row errors over the wire."""

import pytest

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import step_output_from_pb, step_output_to_pb
from taco_proto.steps import RowError, RowErrorCode, StepOutput


def test_row_errors_come_back_as_they_were() -> None:
    errors = (
        RowError(3, RowErrorCode.INVALID_LOGITS, "why"),
        RowError(0, RowErrorCode.UNKNOWN, ""),
    )
    message = step_output_to_pb(StepOutput(epoch=1, step_id=2, row_errors=errors))
    assert step_output_from_pb(message).row_errors == errors


def test_a_code_of_a_later_version_is_unknown() -> None:
    message = pb.StepOutput(
        epoch=1, row_error_slots=[3], row_error_codes=[99], row_error_messages=["why"]
    )
    (error,) = step_output_from_pb(message).row_errors
    assert error == RowError(3, RowErrorCode.UNKNOWN, "why")


def test_the_codes_are_those_of_the_protobuf_enum() -> None:
    numbers = pb.RowErrorCode.DESCRIPTOR.values_by_number
    assert {code.value for code in RowErrorCode} == set(numbers)


def test_columns_of_unequal_length_are_an_error() -> None:
    message = pb.StepOutput(epoch=1, row_error_slots=[3, 4], row_error_codes=[1])
    with pytest.raises(ValueError, match="zip"):
        step_output_from_pb(message)
