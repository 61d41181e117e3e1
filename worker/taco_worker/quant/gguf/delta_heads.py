"""The heads of Gated DeltaNet in GGUF files: which rows and columns of its tensors they are."""

from __future__ import annotations

from dataclasses import dataclass

from taco_worker.quant.gguf.config.metadata import Metadata
from taco_worker.quant.gguf.rows import PartsByKey, TiledHeads

_QUERY, _KEY, _VALUE, _GATE = range(4)


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """Numbers of heads, and columns of a head.

    Attributes:
        num_values: value heads, the same number for each key head.
        value_dim: columns of a value head.
    """

    num_keys: int
    num_values: int
    key_dim: int
    value_dim: int

    @classmethod
    def read(cls, metadata: Metadata) -> DeltaHeads:
        """Raises ValueError if the sizes do not fit one another."""
        num_keys, num_values = metadata.size("ssm.group_count"), metadata.size("ssm.time_step_rank")
        size = metadata.size("ssm.inner_size")
        if num_values % num_keys or size % num_values:
            raise ValueError(
                f"{metadata.architecture}.ssm has {num_keys} key heads and {num_values} value "
                f"heads of {size} columns in all, which do not fit one another"
            )
        return cls(num_keys, num_values, metadata.size("ssm.state_size"), size // num_values)

    @property
    def per_key(self) -> int:
        return self.num_values // self.num_keys

    def tiled_rows(self, base: str) -> TiledHeads | None:
        """The order of rows by the file's name of a module; None: Hugging Face's."""
        match base:
            case "attn_qkv" | "ssm_conv1d":
                return self._tiled(2 * self.num_keys * self.key_dim, self.value_dim)
            case "attn_gate":
                return self._tiled(0, self.value_dim)
            case "ssm_beta" | "ssm_alpha" | "ssm_a" | "ssm_dt":
                return self._tiled(0, 1)
        return None

    def tiled_columns(self, base: str) -> TiledHeads | None:
        """The order of columns by the file's name of a module; None: Hugging Face's."""
        return self._tiled(0, self.value_dim) if base == "ssm_out" else None

    def _tiled(self, start: int, size: int) -> TiledHeads | None:
        if self.per_key == 1:
            return None  # both orders are one
        return TiledHeads(start, self.num_keys, self.per_key, size)

    def parts(self, base: str) -> dict[str, PartsByKey]:
        """Of a module with several of Hugging Face's: their rows by the file's names of them.

        Queries, keys, values and gates were one module in the first files of Qwen3-Next.
        """
        values = self.per_key * self.value_dim
        wide, narrow = (self.key_dim, self.key_dim, values, values), (self.per_key, self.per_key)
        match base:
            case "ssm_in":
                return {
                    "attn_qkv": PartsByKey(self.num_keys, wide, (_QUERY, _KEY, _VALUE)),
                    "attn_gate": PartsByKey(self.num_keys, wide, (_GATE,)),
                }
            case "ssm_ba":
                return {
                    "ssm_beta": PartsByKey(self.num_keys, narrow, (0,)),
                    "ssm_alpha": PartsByKey(self.num_keys, narrow, (1,)),
                }
        return {}
