"""Variables become settings; a bad value is one line that names the variable."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import pytest

from taco_train.lightcc.on_ray.settings import worker_variables
from taco_train.lightcc.settings import Settings, note_unused, settings_from, start_settings
from taco_train.lightcc.variables import VARIABLES, WITHOUT_MEANING, VariableError


def test_every_setting_has_one_variable() -> None:
    assert [one.field for one in VARIABLES] == [field.name for field in fields(Settings)]


def test_nothing_set() -> None:
    assert settings_from({"PATH": "/bin", "LIGHT_2D_ALLREDUCE": ""}) == Settings()


def test_the_spec_s_command_line() -> None:
    settings = settings_from(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "0",
            "LIGHT_INTRA_SIZE": "8",
            "LIGHT_2D_ALLREDUCE": "1",
            "LIGHT_TOPK_ALLREDUCE": "1",
            "LIGHT_TOPK_THRESHOLD": "2097152",
        }
    )
    assert settings == Settings(
        fusion_bytes=0,
        cycle_seconds=0.0,
        intra_size=8,
        two_level=True,
        top_k=True,
        top_k_min_bytes=2**21,
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("LIGHT_2D_ALLREDUCE", "maybe", "0 or 1"),
        ("LIGHT_INTRA_SIZE", "0", "an integer from 1"),
        ("LIGHT_INTRA_SIZE", "8.0", "an integer from 1"),
        ("LIGHT_TOPK_RATIO", "0", "a number above 0, 1 at most"),
        ("LIGHT_TOPK_RATIO", "nan", "a number above 0, 1 at most"),
        ("LIGHT_TOPK_THRESHOLD", "-1", "an integer from 0"),
        ("LIGHT_TOPK_MOMENTUM", "1", "a number from 0, below 1"),
        ("LIGHT_TOPK_MOMENTUM", "nan", "a number from 0, below 1"),
        ("LIGHT_COMPRESSION", "zip", "none, fp16, bf16 or auto"),
        ("HOROVOD_CYCLE_TIME", "fast", "a number from 0 to 60000"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "inf", "a number from 0 to 1000000"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "1e7", "a number from 0 to 1000000"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "1e300", "a number from 0.1 to 1000000"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "0", "a number from 0.1 to 1000000"),
    ],
)
def test_a_value_that_is_not_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(VariableError) as caught:
        settings_from({name: value})
    assert str(caught.value) == f"{name} is {value!r}; it must be {allowed}"


def test_a_timeline_that_the_script_starts() -> None:
    assert settings_from({"HOROVOD_TIMELINE": "DYNAMIC"}) == Settings()


@pytest.mark.parametrize("nics", ["eth0,eth1", ["eth0", "eth1"]])
def test_interfaces_of_jobs_on_ray(nics: str | list[str]) -> None:
    assert worker_variables(nics, None, {}) == {"TACO_TRAIN_INTERFACE": "eth0,eth1"}


@pytest.mark.parametrize("name", WITHOUT_MEANING)
def test_a_variable_without_meaning_is_one_log_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        note_unused({name: "1"})
    assert settings_from({name: "1"}) == Settings()
    (record,) = caplog.records
    assert name in record.getMessage()


def test_a_misspelled_variable_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    note_unused({"LIGHT_TOPK_RATIOS": "1"})
    assert settings_from({"LIGHT_TOPK_RATIOS": "1"}) == Settings()
    assert "LIGHT_TOPK_RATIOS is unknown; known: LIGHT_2D_ALLREDUCE" in caplog.text


def test_the_log_goes_where_the_script_logs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = logging.getLogger("taco_train")
    level, handlers = package.level, list(package.handlers)
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "INFO")
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    try:
        assert start_settings().log_level == "info"
        assert "HOROVOD_AUTOTUNE has no effect" in caplog.text
        assert package.handlers == handlers  # the root logger has one: pytest's
    finally:
        package.setLevel(level)


def test_racks_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "racks"
    file.write_text("a left\nb right\n")
    settings = settings_from({"LIGHT_TOPOLOGY_FILE": str(file)})
    assert settings.levels.num_racks(["a", "b", "b"]) == 2
    assert settings.levels.num_racks(["c", "d"]) == 1
    file.write_text("a\n")
    with pytest.raises(VariableError, match=r"LIGHT_TOPOLOGY_FILE is .*HOST RACK`, not 'a'"):
        settings_from({"LIGHT_TOPOLOGY_FILE": str(file)})
