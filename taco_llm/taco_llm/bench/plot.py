"""Plots latency against request rate as a PNG file. Needs matplotlib."""

from collections.abc import Sequence

from taco_llm.bench.results import Run
from taco_proto.errors import ConfigurationError

_PANELS = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}


def check_matplotlib() -> None:
    """Raises ConfigurationError if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigurationError("a .png needs matplotlib: pip install 'taco-llm[bench]'") from None


def write_plot(path: str, runs: Sequence[Run], title: str) -> None:
    """Writes four panels with lines for the median and each percentile. Rates are evenly spaced."""
    from matplotlib.figure import Figure  # not pyplot, which has global state and opens windows

    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(title)
    runs = sorted(runs, key=lambda run: run.request_rate)
    positions = range(len(runs))
    for axes, (name, label) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for line, values in _lines(runs, name).items():
            axes.plot(positions, values, marker="o", label=line)
        axes.set_title(label)
        axes.set_xlabel("Request rate (req/s)")
        axes.set_ylabel("ms")
        axes.set_xticks(list(positions), [f"{run.request_rate:g}" for run in runs])
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def _lines(runs: Sequence[Run], name: str) -> dict[str, list[float]]:
    """The values by line. A missing value is NaN, which is not drawn."""
    lines: dict[str, list[float]] = {}
    names = [p for run in runs if (times := getattr(run.metrics, name)) for p in times.percentiles]
    for run in runs:
        times = getattr(run.metrics, name)
        lines.setdefault("median", []).append(float("nan") if times is None else times.median)
        for percent in dict.fromkeys(names):
            value = float("nan") if times is None else times.percentiles[percent]
            lines.setdefault(f"{percent:g}th percentile", []).append(value)
    return lines
