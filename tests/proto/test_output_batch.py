"""Readers of `OutputBatch` fill in the columns that do not travel."""

import pytest

from taco_proto import scheduler_pb2 as pb
from taco_proto.output_batch import output_errors, output_logprobs, output_rows, usual_column


def test_empty_columns_have_their_usual_values() -> None:
    batch = pb.OutputBatch(handles=[1, 2], token_ids=[5, 6])
    assert list(output_rows(batch)) == [(1, 0, 1, 0, -1, 0), (2, 0, 1, 0, -1, 0)]
    assert output_logprobs(batch) is None


def test_every_column_is_read() -> None:
    batch = pb.OutputBatch(
        handles=[1, 2],
        indexes=[0, 3],
        num_tokens=[2, 0],
        token_ids=[5, 6],
        finish_reasons=[0, 2],
        stop_token_ids=[-1, 7],
        num_cached_tokens=[16, 0],
    )
    assert list(output_rows(batch)) == [(1, 0, 2, 0, -1, 16), (2, 3, 0, 2, 7, 0)]


def test_columns_of_different_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(output_rows(pb.OutputBatch(handles=[1, 2], indexes=[1])))


def test_a_column_of_usual_values_does_not_travel() -> None:
    assert usual_column([0, 0], 0) == []
    assert usual_column([0, 1], 0) == [0, 1]


def test_errors_of_an_older_scheduler_have_no_reasons() -> None:
    batch = pb.OutputBatch(
        error_handles=[9], error_codes=[429], error_messages=["busy"], error_retry_after=[12]
    )
    assert list(output_errors(batch)) == [(9, 429, "busy", 12, "")]
