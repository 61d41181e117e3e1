"""Resolving --model, against a fake hub on the loopback interface."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from support.fake_hub import COMMIT, only_hub, serve_hub
from taco_common import progress
from taco_worker.models.hub import resolve_model

COMMON = {"config.json": b"{}", "tokenizer.json": b"[]", "README.md": b"#"}
REPOSITORIES = {
    "org/both": {
        **COMMON,
        "model.safetensors": b"s",
        "pytorch_model.bin": b"b",
        "original/consolidated.00.pth": b"o",
        "original/model.safetensors": b"o",
        "onnx/config.json": b"o",
        "consolidated.safetensors": b"o",
    },
    "org/only-bin": {**COMMON, "pytorch_model.bin": b"b", "training_args.bin": b"t"},
    "org/medusa": {**COMMON, "medusa_lm_head.pt": b"m", "other.pt": b"o"},
    "org/mistral": {"params.json": b"{}", "consolidated.safetensors": b"c"},
    "org/dataset": {"README.md": b"#"},
}


@pytest.fixture
def fetched() -> Iterator[list[str]]:
    with only_hub(REPOSITORIES) as fetched:
        yield fetched


def test_directory_with_a_config_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_directory_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a model: it has no config\.json"):
        resolve_model(str(tmp_path))


def test_path_that_does_not_exist(tmp_path: Path) -> None:
    for path in (str(tmp_path / "nothing"), "./nothing", "../nothing", "~/nothing-of-that-name"):
        with pytest.raises(ValueError, match="is not a model directory"):
            resolve_model(path)
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(ValueError, match="is not a model directory"):
        resolve_model(str(file))


def test_neither_path_nor_hub_id(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a directory nor a hub id"):
        resolve_model("what is this?", download_dir=tmp_path)


def test_safetensors_without_the_copies(tmp_path: Path, fetched: list[str]) -> None:
    path = resolve_model("org/both", download_dir=tmp_path)
    assert sorted(fetched) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert path.is_relative_to(tmp_path)
    assert path.name == COMMIT
    assert (path / "model.safetensors").read_bytes() == b"s"


def test_patterns_that_are_not_downloaded(tmp_path: Path, fetched: list[str]) -> None:
    resolve_model("org/both", download_dir=tmp_path, ignore_patterns=("tokenizer*", "*.txt"))
    assert sorted(fetched) == ["config.json", "model.safetensors"]


def test_bin_where_there_is_nothing_else(tmp_path: Path, fetched: list[str]) -> None:
    path = resolve_model("org/only-bin", revision="main", download_dir=tmp_path)
    assert sorted(fetched) == ["config.json", "pytorch_model.bin", "tokenizer.json"]
    assert (path / "pytorch_model.bin").read_bytes() == b"b"


def test_consolidated_files_where_there_is_nothing_else(tmp_path: Path, fetched: list[str]) -> None:
    path = resolve_model("org/mistral", download_dir=tmp_path)
    assert sorted(fetched) == ["consolidated.safetensors", "params.json"]
    assert (path / "consolidated.safetensors").read_bytes() == b"c"


def test_consolidated_files_alone_for_mistrals_format(tmp_path: Path, fetched: list[str]) -> None:
    resolve_model("org/both", download_dir=tmp_path, is_mistral=True)
    assert sorted(fetched) == ["config.json", "consolidated.safetensors", "tokenizer.json"]


def test_medusas_own_weight_file_is_downloaded(tmp_path: Path, fetched: list[str]) -> None:
    resolve_model("org/medusa", download_dir=tmp_path)
    assert sorted(fetched) == ["config.json", "medusa_lm_head.pt", "tokenizer.json"]


def test_second_time_costs_no_download(tmp_path: Path, fetched: list[str]) -> None:
    first = resolve_model("org/both", download_dir=tmp_path)
    fetched.clear()
    assert resolve_model("org/both", download_dir=tmp_path) == first
    assert fetched == []


@pytest.mark.usefixtures("fetched")
def test_a_download_reports_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taco.progress")
    monkeypatch.setattr(progress, "is_supervised", lambda: True)
    monkeypatch.setattr(progress, "_EVENT_SECONDS", 0.0)
    resolve_model("org/both", download_dir=tmp_path)

    events = [record.__dict__["data"] for record in caplog.records if hasattr(record, "data")]
    wanted = ("config.json", "tokenizer.json", "model.safetensors")
    size = sum(len(REPOSITORIES["org/both"][name]) for name in wanted)
    assert {entry["what"] for entry in events} == {"downloading org/both"}
    assert [entry["total"] for entry in events] == sorted(entry["total"] for entry in events)
    assert all(entry["done"] <= entry["total"] for entry in events)
    assert events[0]["total"] < size
    assert events[-1]["done"] == events[-1]["total"] == size
    assert [entry["finished"] for entry in events] == [False] * (len(events) - 1) + [True]

    caplog.clear()
    resolve_model("org/both", download_dir=tmp_path)  # from the cache
    assert not caplog.records


@pytest.mark.usefixtures("fetched")
def test_unknown_repository(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="org/nothing is neither a directory nor a model on"):
        resolve_model("org/nothing", download_dir=tmp_path)


@pytest.mark.usefixtures("fetched")
def test_unknown_revision(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"org/both has no revision v7 on the hub"):
        resolve_model("org/both", revision="v7", download_dir=tmp_path)


@pytest.mark.usefixtures("fetched")
def test_repository_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="org/dataset on the hub is not a model"):
        resolve_model("org/dataset", download_dir=tmp_path)


def test_hub_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hub({}) as (address, _):
        pass
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    with pytest.raises(ValueError, match=r"the Hugging Face hub cannot be reached \(.+\)"):
        resolve_model("org/both", download_dir=tmp_path)
