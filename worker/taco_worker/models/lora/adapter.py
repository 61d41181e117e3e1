"""Which weights of a model a LoRA adapter changes, from the header of its file. Without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from taco_worker.models.config import ModelConfig
from taco_worker.models.lora.settings import LoraSettings, read_settings
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Fill
from taco_worker.models.plan.views import Transpose
from taco_worker.models.weight_files import TensorHeader, stored_tensors
from taco_worker.models.weight_sources import WeightSources

FILES = ("adapter_model.safetensors", "adapter_model.bin")
# PEFT wraps the model, so that names of its tensors begin so.
_PREFIX = "base_model.model."
# Ends of the names of A and B, and whether they belong to embeddings, whose table is [in, out].
_PAIRS = (
    (".lora_A.weight", ".lora_B.weight", False),
    (".lora_embedding_A", ".lora_embedding_B", True),
)
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NAMES_IN_ERROR = 3


@dataclass(frozen=True, slots=True)
class Product:
    """Two tensors of an adapter, A [rank, in] and B [out, rank]: scale · B·A is added to a weight.

    Attributes:
        module: of the weight.
        shape: of what is added.
        is_transposed: (B·A)ᵀ is added: the model's weight is [in, out].
    """

    module: str
    a: str
    b: str
    shape: tuple[int, ...]
    scale: float
    is_transposed: bool


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """What an adapter changes, by the canonical names of the model's tensors.

    Attributes:
        replaced: its tensors that replace those of the model, before products are added.
    """

    file: Path
    replaced: Mapping[str, str]
    products: Mapping[str, Product]

    def check_found(self, found: Iterable[str]) -> None:
        """Raises ValueError if a tensor that it changes is not among those of the model."""
        if missing := sorted({*self.replaced, *self.products} - set(found)):
            rest = len(missing) - _NAMES_IN_ERROR
            more = f" and {rest} more" if rest > 0 else ""
            shown = ", ".join(missing[:_NAMES_IN_ERROR])
            raise ValueError(f"{self.file} does not fit: the model has no {shown}{more}")


def check_mergeable(config: ModelConfig) -> None:
    """Check that an adapter can be merged into the weights of a model, if it is to have one.

    Raises:
        ValueError: the weights are random, converted or quantized.
    """
    if config.files.adapter is None:
        return
    if config.files.load_format == "dummy":
        raise ValueError("merge_lora and load_format dummy contradict each other")
    if config.files.load_format == "sharded_state":
        raise ValueError(
            f"the weights in {config.files.directory} are converted: give merge_lora when they are "
            "converted (taco_llm convert MODEL --merge-lora ADAPTER --out DIR)"
        )
    if config.quantization is not None:
        raise ValueError(
            "merge_lora does not work with a quantized checkpoint: give the base model in "
            "bfloat16, which --quantization can quantize after the merge"
        )


def adapter_file(directory: Path) -> Path:
    """The file of an adapter's tensors; raises ValueError if the directory has no such file."""
    for name in FILES:
        if (directory / name).is_file():
            return directory / name
    raise ValueError(f"no {' or '.join(FILES)} in {directory}")


def read_adapter(directory: Path, plan: ModelPlan, sources: WeightSources) -> LoraAdapter:
    """Read what the adapter in `directory` changes in a model.

    Tensors of parts that are not loaded, such as a vision tower, are left out.

    Raises:
        ValueError: it is no LoRA adapter, its file is damaged, it has tensors that are not
            supported, or they do not fit the model.
    """
    settings = read_settings(directory)
    file = adapter_file(directory)
    tensors = stored_tensors(file)
    num_bytes = sum(prod(one.shape) * _BYTES.get(one.dtype, 1) for one in tensors.values())
    if num_bytes > file.stat().st_size:  # of a pickled file, which may store a number once
        raise ValueError(f"{file} has tensors that are larger than the file")
    replaced: dict[str, str] = {}
    products: dict[str, Product] = {}
    for stored_name, header in tensors.items():
        if header.dtype not in _BYTES:
            raise ValueError(f"{file}: {stored_name} is {header.dtype}, not a floating-point type")
        product = _product(file, stored_name, tensors, settings)
        if product is None:
            if _is_second(stored_name, tensors):
                continue
            target = _target(file, stored_name)
            _check_head(file, target, plan)
            name = sources.canonical(target)
            if name is not None:
                replaced[name] = stored_name
                _check(file, name, header.shape, plan, sources)
            continue
        _check_head(file, f"{product.module}.weight", plan)
        if (name := sources.canonical(f"{product.module}.weight")) is not None:
            products[name] = _as_stored(product, sources.fills.get(name, []))
            _check(file, name, products[name].shape, plan, sources)
    adapter = LoraAdapter(file, replaced, products)
    if not replaced and not products:
        raise ValueError(f"{file} has no tensors for this model")
    adapter.check_found(sources.fills)
    return adapter


def _product(
    file: Path, name: str, tensors: Mapping[str, TensorHeader], settings: LoraSettings
) -> Product | None:
    """The product whose A is the tensor `name`; None: it is no A."""
    for a_end, b_end, is_embedding in _PAIRS:
        if not name.endswith(a_end):
            continue
        b = name.removesuffix(a_end) + b_end
        if b not in tensors:
            raise ValueError(f"{file} has {name:.200} and no {b:.200}")
        shapes = [tensors[one].shape for one in (name, b)]
        if [len(shape) for shape in shapes] != [2, 2]:
            raise ValueError(f"{file}: {name:.200} and {b:.200} are not two matrices")
        (rank, columns), (rows, b_rank) = shapes
        if rank != b_rank or not rank:
            raise ValueError(
                f"{file}: {name:.200} has the rank {rank}, and its B {b_rank}: they must be equal "
                "and at least 1"
            )
        shape = (columns, rows) if is_embedding else (rows, columns)
        module = _target(file, name.removesuffix(a_end))
        return Product(module, name, b, shape, settings.scale(module, rank), is_embedding)
    return None


def _is_second(name: str, tensors: Mapping[str, TensorHeader]) -> bool:
    """Whether a tensor is the B of an A."""
    return any(name.endswith(b) and name.removesuffix(b) + a in tensors for a, b, _ in _PAIRS)


def _target(file: Path, name: str) -> str:
    """The name in the model of a name in the adapter."""
    if ".lora_" in name or not name.startswith(_PREFIX):
        raise ValueError(f"{file}: the tensor {name:.200} is not supported")
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def _as_stored(product: Product, fills: Sequence[Fill]) -> Product:
    """`product` in the order of rows and columns that the model's weight has."""
    if not any(isinstance(view, Transpose) for fill in fills for view in fill.views):
        return product
    return replace(product, shape=product.shape[::-1], is_transposed=not product.is_transposed)


def _check_head(file: Path, target: str, plan: ModelPlan) -> None:
    """Raises ValueError for a change of an LM head that is the token embeddings."""
    module = plan.tied_module
    if module is not None and f".{target}".endswith((f".{module}.weight", f".{module}.bias")):
        raise ValueError(_tied(file, target))


def _tied(file: Path, name: str) -> str:
    return (
        f"{file} changes {name}, and the LM head of this model is its token embeddings: an adapter "
        "of one of them is not supported"
    )


def _check(
    file: Path, name: str, shape: tuple[int, ...], plan: ModelPlan, sources: WeightSources
) -> None:
    fills = sources.fills.get(name, [])
    if plan.has_tied_head and any(fill.parameter == plan.embedding_table for fill in fills):
        raise ValueError(_tied(file, name))
    for fill in fills:
        if not fill.fits(shape):
            raise ValueError(
                f"{file} does not fit: {name} is {list(fill.stored_shape)} in the model, and "
                f"{list(shape)} in the adapter"
            )
