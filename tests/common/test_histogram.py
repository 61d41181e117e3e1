"""Histogram buckets as Prometheus reads them."""

from taco_common.histogram import Histogram
from taco_common.metrics import Families


def test_histogram_buckets_are_cumulative_and_inclusive() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    histogram.observe(2.0, count=3)
    family = Families(model_name="m").histogram("h", "help", histogram)
    by_bound = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert by_bound == {"1.0": 2, "2.0": 6, "+Inf": 7, "h_count": 7, "h_sum": 18.0}
    assert all(sample.labels["model_name"] == "m" for sample in family.samples)
