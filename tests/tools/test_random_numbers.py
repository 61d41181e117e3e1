"""Random numbers of a test do not depend on the tests before it (tests/conftest.py)."""

from __future__ import annotations

import os
import random
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

_FIRST_NUMBERS: set[float] = set()


@pytest.mark.parametrize("index", [0, 1])
def test_a_test_is_seeded_by_its_name(index: int, request: pytest.FixtureRequest) -> None:
    seed = zlib.crc32(f"{os.environ.get('TACO_TEST_SEED', '')}{request.node.nodeid}".encode())
    assert torch.initial_seed() == seed
    assert random.random() == random.Random(seed).random()
    assert np.random.random() == np.random.RandomState(seed).random()


@given(st.integers())
def test_examples_do_not_depend_on_those_before(number: int) -> None:
    _FIRST_NUMBERS.add(torch.rand(()).item())
    assert len(_FIRST_NUMBERS) == 1
