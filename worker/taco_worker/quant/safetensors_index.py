"""The tensors of a directory's safetensors files, from their headers, without torch.

Some formats keep settings of a matrix beside it: as bytes of a small tensor (bitsandbytes) or in
the metadata of the header (torchao).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_common.json_file import read_json_object, unique_keys
from taco_proto.log_text import one_line
from taco_worker.quant.safetensors_header import IndexedTensor, read_safetensors_header

_MAX_INDEX_BYTES = 64 * 2**20
# Names of weight files with or without an index, in the order in which they are looked for.
_SINGLE = ("model.safetensors", "consolidated.safetensors")
# Mistral's shards, and AutoGPTQ's old names.
_OTHERS = ("consolidated-*-of-*.safetensors", "gptq_model-*bit-*g.safetensors")


@dataclass(frozen=True, slots=True)
class SafetensorsIndex:
    """The tensors and the metadata of all files; of a name in two files, the last one's.

    Attributes:
        tensors, metadata: by name.
        has_files: the directory has a safetensors file.
        has_pickles: it has a pickled weight file.
    """

    tensors: Mapping[str, IndexedTensor]
    metadata: Mapping[str, str]
    has_files: bool
    has_pickles: bool

    @classmethod
    def of(cls, model_dir: Path) -> SafetensorsIndex:
        """Read the headers of the model's safetensors files in `model_dir`, without subfolders.

        Raises:
            ValueError: a header, or the index of the files, is damaged.
        """
        tensors: dict[str, IndexedTensor] = {}
        metadata: dict[str, str] = {}
        files = _files(model_dir)
        for file in files:
            header = read_safetensors_header(file)
            metadata |= header.metadata
            tensors |= header.tensors
        pickles = next(model_dir.glob("*.bin"), None)
        return cls(tensors, metadata, bool(files), pickles is not None)

    def with_suffix(self, suffix: str) -> Iterator[tuple[str, IndexedTensor]]:
        """The tensors whose names end so, by their names without it."""
        for name, tensor in self.tensors.items():
            if name.endswith(suffix):
                yield name.removesuffix(suffix), tensor


def _files(model_dir: Path) -> list[Path]:
    """The files that loading reads: others may lie beside them, such as adapters.

    Files that an index names may be missing here: where no weights are loaded, they are not needed.
    """
    for single in _SINGLE:
        if (index := model_dir / f"{single}.index.json").is_file():
            weight_map = read_json_object(index, _MAX_INDEX_BYTES).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ValueError(f"{index} is not an index of weight files: it has no weight_map")
            names = sorted({Path(str(name)).name for name in weight_map.values()})
            return [path for name in names if (path := model_dir / name).is_file()]
        if (path := model_dir / single).is_file():  # reading a pipe would block
            return [path]
    for pattern in _OTHERS:
        if found := sorted(path for path in model_dir.glob(pattern) if path.is_file()):
            return found
    return []


def parse_settings(text: str | bytes) -> dict[str, Any]:
    """The JSON object that a format stores beside a matrix.

    Raises:
        ValueError: it is not a JSON object.
    """
    try:
        settings = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON: {one_line(str(error), 200)}") from None
    if not isinstance(settings, dict):
        raise ValueError("it is not a JSON object")
    return settings
