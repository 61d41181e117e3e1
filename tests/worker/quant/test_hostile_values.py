"""Any bytes in the tensors of a matrix: finite numbers, the same from codes, or one error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taco_worker.models.tensor_files import DTYPE_NAMES
from taco_worker.quant.encodings.fp4_matrix import Fp4Matrix
from taco_worker.quant.encodings.scaled_matrix import POWER_SCALES, ScaledMatrix
from taco_worker.quant.formats.aqlm import AqlmMatrix, Scheme
from taco_worker.quant.formats.awq import FastGemvMatrix, GemmMatrix, GemvMatrix
from taco_worker.quant.formats.bitsandbytes.blocks import Blocks, Nested
from taco_worker.quant.formats.bitsandbytes.rows import Int8Rows
from taco_worker.quant.formats.compressed_tensors.fp6_matrix import Fp6Matrix
from taco_worker.quant.formats.compressed_tensors.packed_matrix import PackedMatrix
from taco_worker.quant.formats.deepspeedfp import RoundedMatrix
from taco_worker.quant.formats.gptq import GptqMatrix
from taco_worker.quant.formats.marlin import MarlinMatrix, SparseMarlinMatrix
from taco_worker.quant.formats.mxfp4 import Mxfp4Matrix
from taco_worker.quant.formats.qqq import QqqMatrix
from taco_worker.quant.formats.torchao.block_floats import ELEMENTS, BlockFloats
from taco_worker.quant.formats.torchao.floats import E4M3, E5M2, Float8Tensor
from taco_worker.quant.formats.torchao.integers import Int4Tensor, IntegerTensor, TiledInt4Tensor
from taco_worker.quant.weight_format import StoredTensor, WeightFormat

N, K = 64, 128
HUGE = 10**15  # a size in settings, not in files
GLOBAL = ".weight_global_scale"
FORMATS: dict[str, WeightFormat] = {
    "aqlm": AqlmMatrix(N, K, Scheme(1, 8, 2, 8)),
    "awq gemm": GemmMatrix(N, K, 32),
    "awq gemv": GemvMatrix(N, K, 32),
    "awq gemv_fast": FastGemvMatrix(N, K, 32),
    "bnb nf4": Blocks(N, K, "nf4", 64),
    "bnb nested": Blocks(N, K, "fp4", 64, nested=Nested(256, 0.5)),
    "bnb offset": Blocks(N, K, "fp4", 64, nested=Nested(256, 1e300)),
    "bnb floats": Blocks(N, K, "nf4", 64, storage="BF16"),
    "bnb int8": Int8Rows(N, K),
    "ct packed": PackedMatrix(N, K, 3, 32, (N, K // 32), True, False),
    "ct ordered": PackedMatrix(N, K, 4, 32, (N, K // 32), False, True),
    "ct tensor": PackedMatrix(N, K, 8, K, (1,), True, False),
    "ct mxfp6": Fp6Matrix(N, K),
    "deepspeedfp 6": RoundedMatrix(N, K, 6, 64),
    "deepspeedfp 8": RoundedMatrix(N, K, 8, 2**20),
    "gptq": GptqMatrix(N, K, 4, 32),
    "gptq ordered": GptqMatrix(N, K, 3, 32, is_symmetric=False, has_ordered_columns=True),
    "gptq 8": GptqMatrix(N, K, 8, None, has_zeros=False),
    "fp8 blocks": ScaledMatrix(N, K, "e4m3", 16, 32, (4, 4)),
    "fp8 huge blocks": ScaledMatrix(N, K, "e4m3", HUGE, HUGE, (1, 1)),
    "int8 zeros": ScaledMatrix(N, K, "int8", 1, K, (N, 1), zero_point=".weight_zero_point"),
    "marlin": MarlinMatrix(N, K, 32),
    "marlin 2:4": SparseMarlinMatrix(N, K, 8, 32),
    "mxfp4": Mxfp4Matrix(N, K),
    "mxfp8": ScaledMatrix(
        N, K, "e4m3", 1, 32, (N, K // 32), scale_dtypes=("F8_E8M0", *POWER_SCALES)
    ),
    "nvfp4 quotient": Fp4Matrix(N, K, 16, ".weight_packed", matrix_scale=GLOBAL, divides=True),
    "nvfp4 product": Fp4Matrix(N, K, 16, ".weight", matrix_scale=".weight_scale_2"),
    "qqq": QqqMatrix(N, K, None),
    "qqq groups": QqqMatrix(N, K, 32),
    "ao int8": IntegerTensor(N, K, 1, 32, has_zeros=True),
    "ao int4": Int4Tensor(N, K, 32),
    "ao tiles": TiledInt4Tensor(N, K, 32, (N // 8, 1, 32, 4)),
    "ao e4m3": Float8Tensor(N, K, E4M3, (N, 1)),
    "ao e5m2": Float8Tensor(N, K, E5M2, ()),
    "ao nvfp4": BlockFloats(N, K, "float4_e2m1fn_x2", 16, True, False, has_tensor_scale=True),
    **{f"ao mx {name}": BlockFloats(N, K, name, 32, False, True) for name in ELEMENTS},
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
NUMBERS = (float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e-45, -0.0, 0.0, -1.0, 65504.0)


def tensor_of(wanted: StoredTensor, dtype: str, seed: int) -> Tensor:
    """Random bytes, or small positive numbers of the types of scales."""
    shape = [4 if size is None else size for size in wanted.shape]
    generator = torch.Generator().manual_seed(seed)
    if dtype in ("F32", "F16", "BF16"):
        return (torch.rand(shape, generator=generator) + 0.5).to(DTYPES[dtype])
    width = DTYPES[dtype].itemsize
    flat = torch.randint(0, 256, (torch.Size(shape).numel() * width,), generator=generator)
    octets = flat.to(torch.uint8)
    if dtype in ("F8_E4M3", "F8_E5M2", "F8_E8M0"):
        octets &= 0x7B  # numbers
    return octets.view(DTYPES[dtype]).reshape(shape)


def check(format_: WeightFormat, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the tensors have numbers; checks these, or the error."""
    message = None
    try:
        values = format_.dequantize(tensors)
    except ValueError as error:
        message = str(error)
    if message is not None:
        assert message
        assert "\n" not in message
        if format_.layout is not None:
            with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
                format_.codes(tensors)
        return False
    assert values.shape == (N, K)
    assert values.dtype == torch.float32
    assert bool(values.isfinite().all())
    if format_.layout is not None:
        assert torch.equal(format_.codes(tensors).values(), values)
    return True


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_numbers_are_finite_or_refused(name: str, data: st.DataObject) -> None:
    format_ = FORMATS[name]
    tensors = {}
    for suffix, wanted in format_.tensors.items():
        if wanted.is_optional and data.draw(st.booleans()):
            continue
        dtype = data.draw(st.sampled_from(wanted.dtypes))
        tensors[suffix] = tensor_of(wanted, dtype, data.draw(st.integers(0, 99)))
    check(format_, tensors)
    suffix = data.draw(st.sampled_from(sorted(tensors)))
    tensor = tensors[suffix]
    flat = tensor.reshape(-1).clone()
    if not flat.numel():
        return
    if flat.dtype in (torch.float32, torch.float16, torch.bfloat16):
        number = data.draw(st.sampled_from(NUMBERS))
        end = data.draw(st.sampled_from([1, flat.numel()]))
        flat[:end] = torch.tensor(number).to(flat.dtype)
    else:
        octets = flat.view(torch.uint8)
        end = data.draw(st.sampled_from([1, octets.numel()]))
        octets[:end] = data.draw(st.sampled_from([0, 1, 126, 127, 128, 254, 255]))
    tensors[suffix] = flat.reshape(tensor.shape)
    check(format_, tensors)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 3e38])
def test_no_scale_of_any_format_may_be_so(name: str, number: float) -> None:
    """Each tensor of floats, one after another, in float32 or bfloat16 where it may be."""
    format_ = FORMATS[name]
    for suffix, wanted in format_.tensors.items():
        dtypes = [one for one in wanted.dtypes if one in ("F32", "BF16")]
        if not dtypes or wanted.is_optional or suffix.endswith("quant_map") or "floats" in name:
            continue  # of maps, numbers without a code are not read; the last are bytes of codes
        tensors = {
            other: tensor_of(stored, stored.dtypes[0], 1)
            for other, stored in format_.tensors.items()
        }
        tensors[suffix] = tensor_of(wanted, dtypes[0], 1)
        tensors[suffix].reshape(-1)[0] = number
        if "deepspeedfp" in name and number == 3e38:
            continue  # the weights themselves, which are rounded
        assert not check(format_, tensors), suffix
