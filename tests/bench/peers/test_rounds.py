"""The comparison with real engines: TACO in process and over HTTP, with the bundled model."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.catalogue import Catalogue
from bench.peers.driver import Report, Times
from bench.peers.engine_process import ROOT, EngineError, EngineProcess
from bench.peers.rounds import figures_of, start_seconds, take_turns, warm_engines
from bench.peers.workloads import parse
from taco_demo.locate import find_model

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """A directory as install.sh makes it, with the bundled model as the checkpoint."""
    directory = tmp_path_factory.mktemp("peers")
    (directory / "models").mkdir()
    model = find_model("demo")
    assert model is not None
    (directory / "models" / "demo").symlink_to(model)
    return Catalogue(directory, "demo", threads=1)


def test_engines_take_turns(catalogue: Catalogue) -> None:
    said: list[str] = []
    specs = [catalogue.find(name, prefix_cache=True) for name in ("taco", "taco-http")]
    with warm_engines(specs, said.append) as engines:
        stream = take_turns(engines, parse("1x20/4"), 2, said.append)
        batch = take_turns(engines, parse("3x16+4/2-4"), 1, said.append)
        constrained = take_turns(engines, parse("json:2x16/8"), 1, said.append)
    assert list(stream) == ["ttft_ms", "tpot_ms"]
    assert list(batch) == ["seconds"]
    assert list(constrained) == ["tokens_per_s"]
    measured = [
        (stream["ttft_ms"], 2),
        (stream["tpot_ms"], 2),
        (batch["seconds"], 1),
        (constrained["tokens_per_s"], 1),
    ]
    for values, num_rounds in measured:
        assert set(values) == {"taco", "taco-http"}
        assert all(len(got) == num_rounds and min(got) > 0 for got in values.values())
    turns = [line.split(": ")[1] for line in said if line.startswith("1x20/4, round")]
    assert turns == ["taco", "taco-http", "taco-http", "taco"]


def test_a_start_uses_a_new_process_and_compiled_modules(
    catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    specs = [catalogue.find("taco", prefix_cache=False)]
    assert start_seconds(specs, 1, print)["taco"][0] > 0
    assert list(tmp_path.rglob("async_engine.*.pyc"))


def test_variants_take_their_form_of_the_model(catalogue: Catalogue) -> None:
    forms = {"taco": "demo", "taco-packed": "demo-packed", "taco-gptq": "demo-gptq"}
    for name, form in forms.items():
        model = Path(catalogue.find(name, prefix_cache=False).settings.model)
        assert model == catalogue.directory / "models" / form


def test_an_engine_that_cannot_start_says_why(catalogue: Catalogue) -> None:
    spec = catalogue.find("taco", prefix_cache=False)
    spec = replace(spec, settings=replace(spec.settings, threads=0))
    with pytest.raises(EngineError, match=r"taco: .*num_threads must be an integer of at least 1"):
        EngineProcess(spec)


def test_an_engine_without_its_kernels_is_not_compared(
    catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would compute instead, many times slower. The engine is imported from PYTHONPATH."""
    shutil.copytree(
        ROOT / "kernels" / "taco_kernels",
        tmp_path / "taco_kernels",
        ignore=shutil.ignore_patterns("lib", "__pycache__"),
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"taco: .*does not use its CPU kernels"):
        EngineProcess(catalogue.find("taco", prefix_cache=False))


def test_an_engine_that_is_not_installed(catalogue: Catalogue, tmp_path: Path) -> None:
    spec = replace(catalogue.find("taco", prefix_cache=False), python=tmp_path / "python")
    with pytest.raises(EngineError, match=r"taco: .*no such interpreter.*install.sh"):
        EngineProcess(spec)


def test_a_stream_and_a_batch_in_figures() -> None:
    report = Report(2.0, [Times(0.5, 1.5, 11), Times(0.6, 2.0, 9)])
    assert figures_of(report) == pytest.approx(
        {"ttft_ms": 500.0, "tpot_ms": 100.0, "seconds": 2.0, "tokens_per_s": 10.0}
    )


def test_unknown_engines_are_rejected(catalogue: Catalogue) -> None:
    with pytest.raises(ValueError, match="is no engine"):
        catalogue.find("llama", prefix_cache=False)
