"""Names of an optimizer's parameters, and which gradients are combined together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

Parameter = torch.nn.Parameter


def named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Parameter]] | None
) -> dict[Parameter, str]:
    """The name of each of the optimizer's parameters.

    Raises:
        ValueError: a parameter has no name, or names are not unique.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if named_parameters is None:
        pairs = [(f"parameter.{i}", one) for i, one in enumerate(parameters)]
    else:
        pairs = pairs_of(named_parameters, "named_parameters", "model.named_parameters()")
    repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(f"names of parameters must be unique; repeated: {', '.join(repeated)}")
    name_of = {parameter: name for name, parameter in pairs}
    unnamed = [i for i, one in enumerate(parameters) if one not in name_of]
    if unnamed:
        raise ValueError(
            f"named_parameters lacks {len(unnamed)} of the optimizer's parameters: numbers "
            f"{', '.join(map(str, unnamed[:5]))} have the shapes "
            f"{', '.join(str(list(parameters[i].shape)) for i in unnamed[:5])}"
        )
    return {one: name_of[one] for one in parameters}


def name_added(names: dict[Parameter, str], added: Iterable[Parameter]) -> None:
    """Give names to parameters that an optimizer gets after the others."""
    for parameter in added:
        names[parameter] = f"add_param_group.{len(names)}"


def pairs_of(given: Any, argument: str, example: str) -> list[tuple[str, Any]]:
    """Names and what they name.

    Raises:
        ValueError: it is something else, such as a model; `argument` and `example` are for the
            message.
    """
    pairs = list(given) if isinstance(given, Iterable) else [given]
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"{argument} must be pairs of names and tensors, such as {example}, not "
            f"{type(given).__name__}"
        )
    return pairs


def groups_of(
    names: dict[Parameter, str], groups: int | Sequence[Sequence[Parameter]] | None
) -> list[tuple[Parameter, ...]]:
    """The parameters in groups: each alone, in `groups` groups of neighbours, or as given.

    Raises:
        ValueError: a parameter is in two groups, or a group holds something else.
    """
    parameters = [one for one in names if one.requires_grad]
    if not groups:
        return [(one,) for one in parameters]
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups is {groups}; it must be 0 or more, or lists of parameters")
        size = -(-len(parameters) // groups)
        return [tuple(parameters[i : i + size]) for i in range(0, len(parameters), size)]
    listed = [one for group in groups if isinstance(group, Iterable) for one in group]
    if not listed or any(not isinstance(one, torch.Tensor) for one in listed):
        raise ValueError("groups must be a number, or lists of parameters")
    given = [tuple(one for one in group if one in names) for group in groups]
    if len(set(map(id, listed))) != len(listed):
        raise ValueError("a parameter can be in one group only")
    known = set(listed)
    return [group for group in given if group] + [(one,) for one in parameters if one not in known]
