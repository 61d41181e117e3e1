"""State that ranks share: saved at commits, restored when a rank is lost, sent to new ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from taco_train.lightcc.horovod.elastic.membership import hosts_have_changed
from taco_train.lightcc.horovod.elastic.sampler import ElasticSampler
from taco_train.lightcc.horovod.exceptions import HostsUpdatedInterrupt
from taco_train.lightcc.horovod.state import current
from taco_train.lightcc.horovod.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class State:
    """What a subclass saves, restores and sends.

    Args:
        bcast_object, get_rank: not needed; Horovod takes them.
    """

    def __init__(self, bcast_object: object = None, get_rank: object = None) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Functions to call when ranks have connected anew, e.g. to scale the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when ranks have connected anew, before `sync`."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state, and ends the round if hosts have changed; every rank calls it.

        Raises:
            HostsUpdatedInterrupt: hosts have changed.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Ends the round if hosts have changed; every rank calls it.

        Raises:
            HostsUpdatedInterrupt: on every rank, at the same call.
        """
        own = hosts_have_changed() if current().placement.rank == 0 else None
        if broadcast_object(own, 0, "elastic updates"):
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Keeps a copy of the state in this process's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Takes the state back to the last `save`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Takes over the state of rank 0, and saves it."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: ranks have connected anew."""


class ObjectState(State):
    """State of plain values, which are attributes.

    Args:
        bcast_object, get_rank: not needed; Horovod takes them.
        values: see object_codec for what can be sent.
    """

    def __init__(self, bcast_object: object = None, get_rank: object = None, **values: Any) -> None:
        super().__init__()
        self._names = list(values)
        for name, value in values.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        self._save_values()

    if TYPE_CHECKING:  # the values

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def save(self) -> None:
        self._save_values()

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        if self._names:
            own = {name: getattr(self, name) for name in self._names}
            for name, value in broadcast_object(own, 0, "elastic state").items():
                setattr(self, name, value)
        self._save_values()

    def _save_values(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}


class TorchState(ObjectState):
    """State of modules, optimizers, samplers and plain values, which are attributes.

    Args:
        model, optimizer: may be None; further ones may be given by name.
        values: modules, optimizers, ElasticSamplers, and plain values.

    Raises:
        TypeError: `model` or `optimizer` is something else.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **values: Any,
    ) -> None:
        for name, one, kind in (
            ("model", model, torch.nn.Module),
            ("optimizer", optimizer, torch.optim.Optimizer),
        ):
            if one is not None and not isinstance(one, kind):
                raise TypeError(f"{name} must be a torch {kind.__name__}, not {type(one).__name__}")
        given = {"model": model, "optimizer": optimizer, **values}
        self._parts = {name: one for name, one in given.items() if isinstance(one, _PARTS)}
        for name, part in self._parts.items():
            super().__setattr__(name, part)
        self._saved_parts: dict[str, Any] = {}
        super().__init__(**{name: one for name, one in given.items() if name not in self._parts})
        self._save_parts()

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; another module or optimizer takes the place of the one before.

        It counts as saved as it is now.
        """
        super().__setattr__(name, value)
        if name != "_parts" and name in self._parts:
            self._parts[name] = value
            self._saved_parts[name] = copy.deepcopy(value.state_dict())

    def save(self) -> None:
        self._save_parts()
        super().save()

    def restore(self) -> None:
        for name, saved in self._saved_parts.items():
            self._parts[name].load_state_dict(copy.deepcopy(saved))
        super().restore()

    def sync(self) -> None:
        for name, part in self._parts.items():
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), 0)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, 0)
            else:
                part.load_state_dict(broadcast_object(part.state_dict(), 0, f"elastic {name}"))
        self._save_parts()
        super().sync()

    def reset(self) -> None:
        for part in self._parts.values():
            if isinstance(part, ElasticSampler):
                part.reset()

    def _save_parts(self) -> None:
        self._saved_parts = {
            name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()
        }


_PARTS = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
