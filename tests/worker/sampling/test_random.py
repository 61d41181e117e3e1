import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.sampling_reference import uniform
from taco_worker.sampling.random import uniforms

SEEDS = st.integers(-(2**63), 2**63 - 1)
POSITIONS = st.integers(0, 2**31)


@given(st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=20))
def test_the_same_bits_as_arithmetic_on_unbounded_integers(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = np.array(pairs, dtype=np.int64).T.copy()
    numbers = uniforms(seeds, positions).tolist()
    assert numbers == [uniform(seed % 2**64, position) for seed, position in pairs]
    assert all(0.0 <= number < 1.0 for number in numbers)


def test_streams_of_neighbouring_seeds_share_no_number() -> None:
    seeds, positions = np.indices((100, 100), dtype=np.int64)
    assert np.unique(uniforms(seeds, positions)).size == 10_000
