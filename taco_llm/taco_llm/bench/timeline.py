"""The timeline of one request: when it was sent and when each chunk of the answer arrived."""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Timeline:
    """The times of one request, in seconds of the benchmark's clock, which starts with the run.

    Attributes:
        start: when the last byte of the request was sent.
        chunks: arrival time of each chunk that carries tokens.
        end: arrival time of the last chunk.
        prompt_tokens: the server's count, or else the client's.
        output_tokens: the server's count, or else the client's, or else one per chunk.
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
        """Time to the first token; for an answer without tokens, to its end."""
        return (self.chunks[0] if self.chunks else self.end) - self.start

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None with fewer than two tokens."""
        if self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    @property
    def itls(self) -> list[float]:
        """Inter-token latencies: times between consecutive chunks."""
        return [after - before for before, after in pairwise(self.chunks)]
