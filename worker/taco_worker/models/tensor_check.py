"""Checks that the tensors of weight files are exactly those of a model, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from taco_proto.log_text import one_line
from taco_worker.models.plan.parameters import Fill

_NAMES_IN_ERROR, _CHARACTERS_IN_ERROR = 5, 300
_FLOATING_POINT = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


class TensorCheck:
    """Collects what is wrong with the tensors of a model directory.

    Attributes:
        found: canonical names of the tensors that the model needs.
    """

    def __init__(self, model_dir: Path) -> None:
        self.found: set[str] = set()
        self._places: dict[str, str] = {}
        self._twice: list[str] = []
        self._model_dir = model_dir
        self._unexpected: list[str] = []
        self._misshapen: list[str] = []
        self._mistyped: list[str] = []

    def add_unexpected(self, stored_name: str) -> None:
        self._unexpected.append(stored_name)

    def fits(
        self,
        stored_name: str,
        name: str,
        shape: Sequence[int],
        dtype: str,
        fills: Iterable[Fill],
        file: Path,
    ) -> bool:
        """Whether a stored tensor can be used for what it fills; not if another one fills it too.

        Args:
            name: its canonical name.
            dtype: its type, by its name in safetensors files.
            file: that stores it.
        """
        place = f"{stored_name} in {file.name}"
        if (other := self._places.setdefault(name, place)) != place:
            self._twice.append(f"{place} and {other}")
            return False
        self.found.add(name)
        for fill in fills:
            dtypes = fill.dtypes or _FLOATING_POINT
            if dtype not in dtypes:
                wanted = " or ".join(fill.dtypes) or "a floating-point type"
                self._mistyped.append(f"{stored_name} (is {dtype}, should be {wanted})")
                return False
            if not fill.fits(tuple(shape)):
                wanted_shape = ["any" if size is None else size for size in fill.stored_shape]
                shapes = f"(is {list(shape)}, should be [{', '.join(map(str, wanted_shape))}])"
                self._misshapen.append(f"{stored_name} {shapes}")
                return False
        return True

    def raise_for(self, missing: Iterable[str]) -> None:
        """Raises ValueError if anything is wrong; the message shows the first few names."""
        problems = [
            f"{problem}: {_listed(names)}"
            for problem, names in (
                ("missing tensors", sorted(missing)),
                ("unexpected tensors", self._unexpected),
                ("tensors that are stored twice", self._twice),
                ("wrong shapes", self._misshapen),
                ("wrong types", self._mistyped),
            )
            if names
        ]
        if problems:
            raise ValueError(f"the weights in {self._model_dir} do not fit: {'; '.join(problems)}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name, _CHARACTERS_IN_ERROR) for name in names[:_NAMES_IN_ERROR])
    rest = len(names) - _NAMES_IN_ERROR
    return f"{shown} and {rest} more" if rest > 0 else shown
