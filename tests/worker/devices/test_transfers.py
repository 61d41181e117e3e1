import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from taco_worker.devices.transfers import Transfers, pack, packed_size, unpack

COLUMNS = st.sampled_from([np.int32, np.int64, np.float32, np.float64]).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=1, max_dims=2, min_side=0))
)


@given(st.lists(COLUMNS))
def test_pack_and_unpack_round_trip(columns: list[np.ndarray]) -> None:
    packed = torch.full((packed_size(columns),), 255, dtype=torch.uint8)
    pack(columns, packed)
    for column, tensor in zip(columns, unpack(packed, columns), strict=True):
        assert tensor.numpy().dtype == column.dtype
        assert np.array_equal(tensor.numpy(), column, equal_nan=True)
        assert tensor.numel() == 0 or (tensor.data_ptr() - packed.data_ptr()) % 16 == 0


def test_strided_columns_are_packed_by_their_values() -> None:
    column = np.arange(20, dtype=np.int32).reshape(4, 5)[::2, 1:3]
    packed = torch.empty(packed_size([column]), dtype=torch.uint8)
    pack([column], packed)
    assert unpack(packed, [column])[0].tolist() == [[1, 2], [11, 12]]


def test_a_cpu_copies_nothing() -> None:
    transfers = Transfers(torch.device("cpu"))
    column = np.arange(3, dtype=np.int32)
    (tensor,) = transfers.upload(column)
    column[0] = 7
    assert tensor.tolist() == [7, 1, 2]
    assert transfers.download(tensor).wait()[0] is tensor
