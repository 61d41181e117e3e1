"""Values arrive as they were sent; what is no value is an error, and nothing is executed."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taco_train.lightcc.object_codec import decode_object, encode_object

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.integers(), st.text()), inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4).map(OrderedDict),
        st.frozensets(st.integers(), max_size=4),
    ),
    max_leaves=20,
)


@given(values)
def test_plain_values(value: Any) -> None:
    found = decode_object(encode_object(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 3).to(dtype)
    found = decode_object(encode_object({"state": [tensor.t() if tensor.ndim == 2 else tensor]}))
    (found,) = found["state"]
    assert found.dtype == dtype
    assert torch.equal(found.t() if tensor.ndim == 2 else found, tensor)
    found.zero_()  # it can be written to, or is empty


def test_views_that_are_conjugate_or_negative() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    found, imaginary = decode_object(encode_object([tensor, tensor.imag]))
    assert torch.equal(found, tensor)
    assert torch.equal(imaginary, tensor.imag)


def test_arrays_dtypes_and_sizes() -> None:
    value = [np.arange(6.0).reshape(2, 3)[:, ::2], np.float32(0.1), torch.int8, torch.Size([2, 0])]
    array, scalar, dtype, size = decode_object(encode_object(value))
    np.testing.assert_array_equal(array, value[0])
    assert (type(scalar), scalar, dtype) == (np.float32, np.float32(0.1), torch.int8)
    assert isinstance(size, torch.Size)
    assert size == (2, 0)


def test_an_optimizer_s_state() -> None:
    weight = torch.nn.Parameter(torch.randn(3))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    found = decode_object(encode_object(state))
    assert found["param_groups"] == state["param_groups"]
    assert torch.equal(found["state"][0]["exp_avg"], state["state"][0]["exp_avg"])


def test_a_type_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(TypeError, match=r"a value of type pathlib\.\w+ cannot be sent"):
        encode_object({"a": [__import__("pathlib").Path("x")]})
    nested: list[Any] = []
    for _ in range(200):
        nested = [nested]
    with pytest.raises(TypeError, match="nested more than 100 deep"):
        encode_object(nested)


@given(st.binary(max_size=60))
def test_other_bytes_raise_value_errors_alone(data: bytes) -> None:
    with suppress(ValueError):
        decode_object(data)


@given(values, st.data())
def test_values_that_are_cut_off(value: Any, data: st.DataObject) -> None:
    encoded = encode_object(value)
    end = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ValueError, match=r"cut off|cannot be read|values in"):
        decode_object(encoded[:end])


def test_a_pickle_is_no_value() -> None:
    with pytest.raises(ValueError, match=r"read|cut off|values in"):
        decode_object(pickle.dumps({"a": print}))
