"""Metrics of several schedulers on one page."""

from prometheus_client.parser import text_string_to_metric_families

from taco_gateway.engine.merged_metrics import merge_metrics

PAGE = b"""# HELP steps_total Steps planned.
# TYPE steps_total counter
steps_total{model_name="m"} 3.0
# HELP workers Workers.
# TYPE workers gauge
workers 2.0
"""


def test_a_page_alone_stays_as_it_is() -> None:
    assert merge_metrics({"a:1": PAGE}) == PAGE


def test_samples_get_a_label_and_families_are_grouped() -> None:
    page = merge_metrics({"a:1": PAGE, 'unix:/"x"': PAGE.replace(b"3.0", b"4.0")}).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert {
        (sample.labels["scheduler"], sample.labels["model_name"], sample.value)
        for sample in families["steps"].samples
    } == {("a:1", "m", 3.0), ('unix:/"x"', "m", 4.0)}
    assert len(families["workers"].samples) == 2
    assert page.count("# TYPE steps_total") == 1
