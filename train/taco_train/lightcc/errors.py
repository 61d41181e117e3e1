"""What goes wrong in collectives."""

from __future__ import annotations


class CollectiveError(RuntimeError):
    """A collective failed on every rank: ranks disagree, a rank is gone, or a link is."""


class DuplicateNameError(ValueError):
    """A rank submits a name again before its first collective has ended."""
