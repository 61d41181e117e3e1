"""Packs a checkpoint's tensors for the CPU kernels, one by one as they are read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from taco_kernels.cpu.decoder import Layer, Norm, Weights
from taco_kernels.cpu.matmul import PackedMatrix
from taco_kernels.library import CpuKernels
from taco_worker.backends.torch.decoder_weights import parameter_shapes
from taco_worker.layers.rotary import cos_sin_table
from taco_worker.models.decoder_config import DecoderConfig, LearnedPositions

_TABLES = ("embed_tokens", "embed_positions")
_STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


class CpuWeights:
    """A `WeightSink` for the CPU kernels.

    Matrices are packed; norms and biases become float32. If the LM head is tied to the embeddings
    and holds the same numbers, embeddings are read from it; otherwise they stay in the mapped file.

    Attributes:
        matrix_dtype: the stored dtype of matrices.
        nbytes: memory of the weights without the embeddings, of which only used rows are read.
    """

    def __init__(
        self,
        config: DecoderConfig,
        kernels: CpuKernels,
        *,
        dtype: torch.dtype,
        quantization: str | None,
    ) -> None:
        """Raises ValueError for options that the kernels do not support."""
        if config.activation not in _ACTIVATIONS:
            known = ", ".join(sorted(_ACTIVATIONS))
            raise ValueError(f"unknown activation {config.activation!r}; known: {known}")
        self.shapes: Mapping[str, tuple[int, ...]] = parameter_shapes(config)
        self.dtype = dtype
        self.device = torch.device("cpu")
        self._config = config
        self._kernels = kernels
        self.matrix_dtype = torch.int8 if quantization == "int8" else dtype
        self._matrices: dict[str, PackedMatrix] = {}
        self._vectors: dict[str, Tensor] = {}
        self._tables: dict[str, Tensor] = {}

    def put(self, parameter: str, start: int, rows: Tensor) -> None:
        rows = (rows if rows.dtype in _STORED_DTYPES else rows.float()).contiguous()
        module, _, kind = parameter.rpartition(".")
        if module in _TABLES:
            is_tied = module == "embed_tokens" and self._config.tied_embeddings
            if is_tied:
                self._matrix("lm_head", parameter).pack(self._kernels, rows)
            # Packed with the same numbers, they need not be kept twice.
            if not is_tied or rows.dtype != self.matrix_dtype:
                self._tables[module] = rows
        elif kind == "bias" and f"{module}.weight" in self.shapes and not module.endswith("norm"):
            self._matrix(module, f"{module}.weight").set_bias(rows, start)
        elif rows.ndim == 2:
            self._matrix(module, parameter).pack(self._kernels, rows, start)
        else:
            self._vectors[parameter] = rows.float()

    @property
    def nbytes(self) -> int:
        matrices = sum(matrix.nbytes for matrix in self._matrices.values())
        return matrices + sum(vector.nbytes for vector in self._vectors.values())

    def assemble(self, num_positions: int) -> Weights:
        """All weights, once every parameter was put; rotary angles for `num_positions`."""
        config, positions = self._config, self._config.positions
        rotary = None
        if not isinstance(positions, LearnedPositions):
            table = cos_sin_table(positions, config.head_dim, num_positions, self.device)
            cosines, sines = table.chunk(2, dim=1)
            rotary = cosines.contiguous(), sines.contiguous()
        return Weights(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm=config.norm,
            norm_eps=config.norm_eps,
            activation=_ACTIVATIONS[config.activation],
            attention_scale=config.attention_scale,
            pre_norm=config.pre_norm,
            gated_mlp=config.gated_mlp,
            embeddings=self._tables.get("embed_tokens"),
            positions=self._tables.get("embed_positions"),
            position_offset=positions.offset if isinstance(positions, LearnedPositions) else 0,
            rotary=rotary,
            embed_in=self._matrices.get("embed_in_proj"),
            embed_out=self._matrices.get("embed_out_proj"),
            final_norm=self._norm("final_norm") if config.final_norm else None,
            lm_head=self._matrices["lm_head"],
            layers=[self._layer(index) for index in range(config.num_layers)],
        )

    def _matrix(self, module: str, parameter: str) -> PackedMatrix:
        """The matrix of `module`, with the shape of `parameter`."""
        if module not in self._matrices:
            n, k = self.shapes[parameter]
            self._matrices[module] = PackedMatrix(
                n, k, self.matrix_dtype, gated=module.endswith("gate_up_proj")
            )
        return self._matrices[module]

    def _layer(self, index: int) -> Layer:
        name = f"layers.{index}"
        up = "gate_up_proj" if self._config.gated_mlp else "up_proj"
        return Layer(
            attn_norm=self._norm(f"{name}.attn_norm"),
            mlp_norm=self._norm(f"{name}.mlp_norm"),
            qkv=self._matrices[f"{name}.attn.qkv_proj"],
            out=self._matrices[f"{name}.attn.out_proj"],
            up=self._matrices[f"{name}.mlp.{up}"],
            down=self._matrices[f"{name}.mlp.down_proj"],
            sliding_window=self._config.sliding_windows[index] or 0,
        )

    def _norm(self, name: str) -> Norm:
        return Norm(self._vectors[f"{name}.weight"], self._vectors.get(f"{name}.bias"))
