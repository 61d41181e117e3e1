"""Costs of links whose times one can compute by hand."""

from taco_train.lightcc.cost_model import Costs, Line


def costs(megabits: float, *, latency: float = 2e-4, hosts: int = 2, ranks: int = 2) -> Costs:
    """A rank's sockets carry 2 GB/s, memory 2 GB/s, float16 4 GB/s, TopK 1 GB/s."""
    per_byte = max(8e-6 / megabits, 0.5e-9)
    return Costs(
        num_hosts=hosts,
        ranks_per_host=ranks,
        ring=Line(latency, per_byte),
        hosts=Line(latency, per_byte),
        memory=Line(2e-5, 0.5e-9),
        convert_per_byte=0.25e-9,
        top_k=Line(1e-4, 1e-9),
    )
