"""What the client saw of one request, on one clock."""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Timeline:
    """One request. Times are seconds of the benchmark's clock, which starts with the run.

    Attributes:
        start: the request's last byte left.
        chunks: when each chunk that carries tokens was read.
        end: when the last chunk of the answer was read.
        prompt_tokens: as the server counts them, else as the client does.
        output_tokens: as the server counts them, else as the client does, else one a chunk.
        text: the answer.
        error: why the request failed; None if it succeeded.
    """

    start: float = 0.0
    chunks: list[float] = field(default_factory=list)
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str | None = None

    @property
    def latency(self) -> float:
        """End-to-end latency: from the request to the last chunk."""
        return self.end - self.start

    @property
    def ttft(self) -> float:
        """Time to the first token, or to the end of an answer that carried none."""
        return (self.chunks[0] if self.chunks else self.end) - self.start

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None where there is no second one."""
        if self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    @property
    def itls(self) -> list[float]:
        """Times between neighbouring chunks."""
        return [after - before for before, after in pairwise(self.chunks)]
