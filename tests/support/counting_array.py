"""An array that counts how many elements are visited through it."""

from typing import Any

import numpy as np


class CountingArray(np.ndarray):
    """Counts the elements that ufuncs read and that indexing returns, in it and in what is derived
    from it. The count belongs to the class: set it to 0 before what is to be counted.
    """

    num_visited = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        CountingArray.num_visited += max(np.size(operand) for operand in inputs)
        plain = [
            operand.view(np.ndarray) if isinstance(operand, CountingArray) else operand
            for operand in inputs
        ]
        result = getattr(ufunc, method)(*plain, **options)
        return result.view(CountingArray) if isinstance(result, np.ndarray) else result

    def __getitem__(self, key: Any) -> Any:
        result = super().__getitem__(key)
        CountingArray.num_visited += np.size(result)
        return result
