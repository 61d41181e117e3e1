import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench.pictures.peers_chart import IMAGES, PANELS, RESULTS, chart, records_of
from bench.pictures.svg import SCHEMES, Scheme

by_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)


@by_scheme
def test_the_committed_chart_shows_the_recorded_results(scheme: Scheme) -> None:
    """Else: python -m bench.pictures.peers_chart."""
    assert (IMAGES / f"peers-{scheme.name}.svg").read_text() == chart(RESULTS, scheme)


@by_scheme
def test_the_chart_is_well_formed_and_small(scheme: Scheme) -> None:
    drawn = chart(RESULTS, scheme)
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(drawn) < 50_000


def test_every_engine_of_a_group_has_a_bar_with_its_median() -> None:
    drawn = chart(RESULTS, SCHEMES[0])
    assert drawn.count(f'fill="{SCHEMES[0].ours}"') + drawn.count(
        f'fill="{SCHEMES[0].theirs}"'
    ) == sum(len(group.engines) for panel in PANELS for group in panel.groups)
    records = records_of(RESULTS)
    for group in (group for panel in PANELS for group in panel.groups):
        figures = records[group.result]["figures"]["workloads"][group.workload]
        for engine in group.engines:
            median = figures["figures"][group.figure]["medians"][engine]
            assert f">{median:,.1f}</text>" in drawn or f">{median:,.0f}</text>" in drawn


def test_results_of_two_machines_are_not_drawn_together(tmp_path: Path) -> None:
    for path in RESULTS.glob("peers_*.json"):
        shutil.copy(path, tmp_path)
    for changed in tmp_path.glob("peers_throughput.*.json"):
        record = json.loads(changed.read_text())
        record["machine"]["cores"] = 64
        changed.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="not of one machine"):
        chart(tmp_path, SCHEMES[0])
