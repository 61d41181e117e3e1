"""`--load-format npcache`: keeps the tensors of .bin files as NumPy files, which can be mapped.

Files that torch wrote before version 1.6 cannot be mapped, and others only tensor by tensor through
a pickle. The cache is the folder `np` beside them.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
import torch
from torch import Tensor

from taco_worker.models.tensor_files import iterate_tensors

_FOLDER = "np"
_END = ".npy"
_BITS = {1: torch.uint8, 2: torch.int16}  # stored in place of types that NumPy lacks
_MIN_MAPPED_BYTES = 4096
_LONGEST_NAME = 200

logger = logging.getLogger("taco.worker")


def numpy_files(files: Sequence[Path]) -> list[Path]:
    """The cached tensors of `files`, one a file; the first process writes them, others wait.

    `files` themselves, with a warning, if the folder is not writable.

    Raises:
        ValueError: a file is damaged, or the disk is full.
    """
    folder = files[0].parent / _FOLDER
    target = folder / _stamp(files)
    try:
        if not target.is_dir():
            _write(files, folder, target)
    except PermissionError as error:
        logger.warning("npcache has no effect: cannot write %s: %s", folder, error.strerror)
        return list(files)
    except OSError as error:
        if error.filename is None or folder not in Path(error.filename).parents:
            raise
        raise ValueError(f"cannot write {error.filename}: {error.strerror}") from None
    return sorted(target.glob(f"*{_END}"))


def is_numpy_file(path: Path) -> bool:
    return path.suffix == _END


def iterate_numpy_file(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the tensor of a file of the cache, mapped if it is not small.

    Raises:
        ValueError: the file is damaged.
    """
    name, _, dtype_name = path.name.removesuffix(_END).rpartition(".")
    dtype = getattr(torch, dtype_name, None)
    try:
        is_mapped = path.stat().st_size >= _MIN_MAPPED_BYTES
        array = np.load(path, mmap_mode="c" if is_mapped else None, allow_pickle=False)
        tensor = torch.from_numpy(array)
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != tensor.dtype.itemsize:
        raise ValueError(f"cannot read {path}: its name does not end with its type")
    yield unquote(name), tensor.view(dtype)


def _stamp(files: Sequence[Path]) -> str:
    """Changes with the names, sizes and times of the files."""
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _write(files: Sequence[Path], folder: Path, target: Path) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file
        if target.is_dir():
            return
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder))
        try:
            for file in files:
                for name, tensor in iterate_tensors(file):
                    _save(unfinished, name, tensor)
            unfinished.rename(target)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def _save(folder: Path, name: str, tensor: Tensor) -> None:
    dtype_name = str(tensor.dtype).removeprefix("torch.")
    file_name = f"{quote(name, safe='')}.{dtype_name}{_END}"
    if len(file_name) > _LONGEST_NAME:
        raise ValueError(f"the name of a tensor is too long for a file: {name[:100]}")
    try:
        array = tensor.contiguous().numpy()
    except TypeError:
        array = tensor.contiguous().view(_BITS[tensor.dtype.itemsize]).numpy()
    np.save(folder / file_name, array, allow_pickle=False)
