"""What goes wrong between ranks."""


class CommunicationError(Exception):
    """An operation cannot end: a rank is gone or silent, or ranks called different operations.

    The communicator is of no use afterwards: every later call raises the same error.

    Attributes:
        rank, host: of the rank that is gone, silent or disagrees; None if unknown. Ranks of a
            subgroup have their numbers in the communicator that it was made of.
        stage: what this rank was doing, e.g. `shared memory` or `exchange between hosts`.
    """

    def __init__(
        self, message: str, *, rank: int | None = None, host: str | None = None, stage: str = ""
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.stage = stage

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (str(self), self.rank, self.host, self.stage)


def _restore(message: str, rank: int | None, host: str | None, stage: str) -> CommunicationError:
    return CommunicationError(message, rank=rank, host=host, stage=stage)
