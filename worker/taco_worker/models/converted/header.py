"""The files of `taco_llm convert`: weights as the CPU kernels keep them in memory.

A converted directory holds, beside config.json and the tokenizer:

- taco_weights.json: what the files fit, and where each matrix is;
- taco_weights.matrices: the packed matrices, as they lie in memory;
- taco_weights.rest: all other weights and the scales of the KV cache, a safetensors file.

config.json has no settings of a quantization, but those of the KV cache (`KV_CACHE_SETTINGS`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from taco_common.json_file import JsonFileError, read_json_object
from taco_worker.models.code_segments import Segments
from taco_worker.models.converted.layouts import Layouts, codes_as_json, codes_from_json

_VERSION = 3
_HEADER, _MATRICES, _REST = (f"taco_weights.{end}" for end in ("json", "matrices", "rest"))
_MAX_HEADER_BYTES = 64 * 2**20

CONVERT_AGAIN = "run taco_llm convert again"

# Fields of a quantized checkpoint's settings that config.json keeps, without what they lay in.
KV_CACHE_SETTINGS = ("kv_cache_scheme", "kv_cache_quant_algo")


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """What converted weights fit.

    Attributes:
        architecture: class name.
        instruction_set, kernel_hash: the set that packed the matrices, and the hash of the kernels'
            source code: another build may pack otherwise.
        dtype, matrix_dtype: of the model, and of its stored matrices: "bfloat16", "int8".
        quantization, quantized_activations, quantize_lm_head: as the flags had them; quantization
            None: nothing.
        int8_activations: the matrices of codes that multiply int8 activations.
        num_matrix_bytes: size of the file of matrices.
        matrices: the start of each in that file, by parameter, in the order of their creation.
        codes: of the rows of parameters, as the checkpoint had them.
        stored: of each matrix of codes, how each of its parts is kept; those of experts have the
            name of the parameter and a number.
    """

    architecture: str
    instruction_set: str
    kernel_hash: str
    dtype: str
    matrix_dtype: str
    quantization: str | None
    quantized_activations: str
    quantize_lm_head: bool
    int8_activations: Sequence[str]
    num_matrix_bytes: int
    matrices: Mapping[str, int]
    codes: Segments
    stored: Layouts

    def check(self, **wanted: str) -> None:
        """Raises ValueError if a field differs from what is wanted, by name."""
        for name, value in wanted.items():
            found = getattr(self, name)
            if found != value:
                shown = name.replace("_", " ")
                raise ValueError(
                    f"the converted weights do not fit: they are for the {shown} {found}, not "
                    f"{value}; {CONVERT_AGAIN}"
                )

    def check_choices(
        self, quantization: str | None, quantized_activations: str, quantize_lm_head: bool
    ) -> None:
        """Check flags against those of the conversion; None, auto and False leave it to these.

        Raises:
            ValueError: one asks for something else.
        """
        found = "the weights were converted"
        if quantization not in (None, self.quantization):
            own = f"with {self.quantization!r}" if self.quantization else "without --quantization"
            raise ValueError(
                f"the model directory is converted and needs no --quantization: {found} {own}, so "
                f"{quantization!r} does not apply"
            )
        if quantized_activations not in ("auto", self.quantized_activations):
            raise ValueError(
                f"{found} with quantized_activations {self.quantized_activations}, which is not "
                f"{quantized_activations!r}"
            )
        if quantize_lm_head and not self.quantize_lm_head:
            raise ValueError(f"{found} without quantize_lm_head")


def is_converted(model_dir: Path) -> bool:
    """Whether `taco_llm convert` wrote a directory."""
    return (model_dir / _HEADER).is_file()


def check_header_exists(model_dir: Path) -> None:
    """Raises ValueError if a directory has converted matrices without taco_weights.json."""
    if matrices_file(model_dir).is_file() and not is_converted(model_dir):
        raise ValueError(
            f"the converted weights in {model_dir} are incomplete: there is no {_HEADER}; "
            f"{CONVERT_AGAIN}"
        )


def packed_files(model_dir: Path) -> list[Path]:
    """The files of the weights: the matrices, the rest, and what they fit.

    Raises:
        ValueError: one is missing, or `model_dir` is not a converted directory.
    """
    check_header_exists(model_dir)
    if not is_converted(model_dir):
        raise ValueError(
            f"no converted weights in {model_dir}: --load-format sharded_state reads what "
            "`taco_llm convert MODEL --out DIR` writes"
        )
    files = [model_dir / name for name in (_MATRICES, _REST, _HEADER)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"no {' and '.join(missing)} in {model_dir}: {CONVERT_AGAIN}")
    return files


def read_header(model_dir: Path) -> PackedHeader:
    """Read and check taco_weights.json, and the size of the file of matrices.

    Raises:
        ValueError: a file is missing, damaged, or of another version of TACO.
    """
    matrices, _, path = packed_files(model_dir)
    try:
        content = read_json_object(path, _MAX_HEADER_BYTES)
    except JsonFileError as error:
        raise ValueError(f"{error}; {CONVERT_AGAIN}") from None
    if content.pop("version", None) != _VERSION:
        raise ValueError(f"{path} is of another version of TACO: {CONVERT_AGAIN}")
    header = _parsed(content, path)
    size = matrices.stat().st_size
    if size != header.num_matrix_bytes:
        raise ValueError(
            f"{matrices} is damaged: it has {size} bytes instead of {header.num_matrix_bytes}; "
            f"{CONVERT_AGAIN}"
        )
    return header


def write_header(model_dir: Path, header: PackedHeader) -> None:
    """Write taco_weights.json: the last file of a conversion."""
    plain = {item: getattr(header, item) for item in _PLAIN}
    content = {"version": _VERSION, **plain, **codes_as_json(header.codes, header.stored)}
    (model_dir / _HEADER).write_text(json.dumps(content, indent=1) + "\n")


def matrices_file(model_dir: Path) -> Path:
    return model_dir / _MATRICES


def rest_file(model_dir: Path) -> Path:
    return model_dir / _REST


_CODED = ("codes", "stored")
_PLAIN = tuple(item.name for item in fields(PackedHeader) if item.name not in _CODED)


def _parsed(content: Mapping[str, Any], path: Path) -> PackedHeader:
    hints = get_type_hints(PackedHeader)
    for name in _PLAIN:
        value = content.get(name)
        if name == "matrices":
            is_valid = isinstance(value, dict) and all(
                type(start) is int and start >= 0 for start in value.values()
            )
        elif name == "int8_activations":
            is_valid = isinstance(value, list) and all(isinstance(one, str) for one in value)
        else:
            is_valid = name in content and isinstance(value, hints[name])
        if not is_valid:
            raise ValueError(f"cannot read {path}: {name} is {str(value)[:100]!r}; {CONVERT_AGAIN}")
    if unknown := sorted(set(content) - {*_PLAIN, *_CODED, "layouts"}):
        names = ", ".join(unknown[:5])
        raise ValueError(f"cannot read {path}: unknown fields {names}; {CONVERT_AGAIN}")
    try:
        codes, stored = codes_from_json(content)
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}; {CONVERT_AGAIN}") from None
    return PackedHeader(**{name: content[name] for name in _PLAIN}, codes=codes, stored=stored)
