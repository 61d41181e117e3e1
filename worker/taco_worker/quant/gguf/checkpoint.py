"""A model in GGUF: one file, or several that each hold some of its tensors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from taco_worker.quant.gguf.config.metadata import Metadata
from taco_worker.quant.gguf.header import GgufHeader, TensorInfo, read_header
from taco_worker.quant.gguf.joined_pieces import AnyPiece, join
from taco_worker.quant.gguf.pieces import PieceFinder

SUFFIX = ".gguf"
_OTHER_FILES = re.compile("mmproj|imatrix", re.IGNORECASE)
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def is_gguf(path: Path) -> bool:
    return path.suffix == SUFFIX


def is_other_file(name: str) -> bool:
    """Whether it is a vision part, or statistics of activations, which lie beside models."""
    return _OTHER_FILES.search(name) is not None


def part_files(path: Path) -> list[Path]:
    """All files of a model, from the path of one of them, in their order.

    Raises:
        ValueError: one is missing.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = [f"{match['stem']}-{i:05}-of-{count:05}{SUFFIX}" for i in range(1, count + 1)]
    if not 1 <= int(match["number"]) <= count:
        raise ValueError(f"{path} is not one of {count} files")
    files = [path.parent / name for name in names]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{path} is one of {count} files, and {missing[0]} is missing")
    return files


def only_model(directory: Path) -> Path | None:
    """The first file of the model in a directory; None: there is no .gguf file.

    Raises:
        ValueError: there are files of several models.
    """
    files = sorted(file for file in directory.glob(f"*{SUFFIX}") if file.is_file())
    models = {model_name(file.name) for file in files if not is_other_file(file.name)}
    if len(models) > 1:
        names = ", ".join(sorted(models)[:5])
        raise ValueError(f"{directory} has several models ({names}): give the path of a .gguf file")
    return next((file for file in files if model_name(file.name) in models), None)


def model_name(name: str) -> str:
    """The name of a file without the number of its part."""
    match = _PART.fullmatch(name)
    return name if match is None else match["stem"]


@dataclass(frozen=True)
class GgufCheckpoint:
    """The headers of all files of a model.

    Attributes:
        headers: by file, the first one with the metadata.
    """

    headers: Mapping[Path, GgufHeader]

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Of all files."""
        return {
            name: one for header in self.headers.values() for name, one in header.tensors.items()
        }

    @property
    def first_file(self) -> Path:
        return next(iter(self.headers))

    @property
    def digest(self) -> str:
        """Of all headers, hexadecimal."""
        digests = "".join(header.digest for header in self.headers.values())
        return hashlib.blake2b(digests.encode(), digest_size=16).hexdigest()

    @cached_property
    def metadata(self) -> Metadata:
        try:
            return Metadata(self.headers[self.first_file].metadata)
        except ValueError as error:
            raise ValueError(f"cannot read {self.first_file}: {error}") from None

    @cached_property
    def file_of(self) -> Mapping[str, Path]:
        """The file of each tensor, by its name there."""
        return {name: file for file, header in self.headers.items() for name in header.tensors}

    @cached_property
    def pieces(self) -> Mapping[Path, list[AnyPiece]]:
        """The model's tensors in Hugging Face's format, by the file of their first part.

        Raises:
            ValueError: the architecture is not supported, or a tensor has an impossible shape; the
                message is one line with the name of the file.
        """
        try:
            finder = PieceFinder(self.metadata, self.tensors)
            found = (piece for info in self.tensors.values() for piece in finder.pieces(info))
            by_file: dict[Path, list[AnyPiece]] = {file: [] for file in self.headers}
            for piece in join(found, finder.table):
                by_file[self.file_of[piece.infos[0].name]].append(piece)
            return by_file
        except ValueError as error:
            raise ValueError(f"cannot read {self.first_file}: {error}") from None

    def __iter__(self) -> Iterator[AnyPiece]:
        for pieces in self.pieces.values():
            yield from pieces


def open_checkpoint(path: Path) -> GgufCheckpoint:
    """The headers of a model, from the path of one of its files.

    Raises:
        ValueError: a file is missing or invalid, or the files are not of one model; the message is
            one line with the name of a file.
    """
    return _open(tuple((file, *_state(file)) for file in part_files(path)))


@lru_cache(maxsize=8)
def _open(states: tuple[tuple[Path, int, int], ...]) -> GgufCheckpoint:
    """Vocabularies take a fraction of a second to read: each state of files is read once.

    Args:
        states: path, size and time of change of each file.
    """
    headers = {file: read_header(file) for file, _, _ in states}
    check_parts(headers)
    return GgufCheckpoint(headers)


def check_parts(headers: Mapping[Path, GgufHeader]) -> None:
    """Raises ValueError unless the files are the parts of one model, in order."""
    names: dict[str, Path] = {}
    for number, (file, header) in enumerate(headers.items()):
        count = header.metadata.get("split.count") or 1  # some writers store 0
        place = header.metadata.get("split.no", 0)
        if count != len(headers) or place != number:
            raise ValueError(
                f"{file} says that it is file {place!r:.20} of {count!r:.20}, counted from 0, and "
                f"it is file {number} of {len(headers)}"
            )
        for name in header.tensors:
            if name in names:
                raise ValueError(f"{names[name]} and {file} both have the tensor {name!r}")
            names[name] = file
    first, header = next(iter(headers.items()))
    wanted = header.metadata.get("split.tensors.count") or len(names)
    if wanted != len(names):
        raise ValueError(
            f"{first} counts {wanted!r:.20} tensors in all files, and they have {len(names)}"
        )


def _state(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from None
    return stat.st_size, stat.st_mtime_ns
