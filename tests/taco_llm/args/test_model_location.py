"""The MODEL argument for models in GGUF (file, directory, files of a hub repository), and LoRA."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.architectures.variants import VARIANTS
from support.fake_hub import only_hub
from support.gguf_files.convert import write_gguf
from taco_llm import LLM
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.model_location import locate_model, suggesting
from taco_llm.args.replica_args import ReplicaArgs
from taco_llm.cli.main import main
from taco_llm.supervisor.preflight import check_before_start
from taco_proto.errors import ConfigurationError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "taco_llm" / "gguf"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return VARIANTS["llama-2-like"].make(tmp_path_factory.mktemp("model") / "hf")


@pytest.fixture
def file(source: Path, tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return write_gguf(source, tmp_path / "models" / "tiny.gguf")


def test_file_and_directory(file: Path, cache: Path) -> None:
    located = Path(locate_model(str(file)))
    assert located.parent == cache
    assert locate_model(str(file.parent)) == str(located)
    assert locate_model(str(located)) == str(located)
    assert locate_model(str(file), "tokenizer") == str(located)
    (file.parent / "mmproj-tiny.gguf").touch()
    assert locate_model(str(file.parent)) == str(located)
    (file.parent / "other.gguf").touch()
    with pytest.raises(ConfigurationError, match=r"has several models \(other.gguf, tiny.gguf\)"):
        locate_model(str(file.parent))


def test_directory_with_both_formats(source: Path, file: Path, cache: Path) -> None:
    for one in source.iterdir():
        (file.parent / one.name).write_bytes(one.read_bytes())
    assert locate_model(str(file.parent)) == str(file.parent)
    assert Path(locate_model(str(file.parent), load_format="gguf")).parent == cache


def test_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match=r"cannot read .*/bad\.gguf: it ends inside"):
        locate_model(str(tmp_path / "bad.gguf"))


@pytest.mark.parametrize("name", ["nothing.gguf", "models/nothing.gguf", "/no/nothing.gguf"])
def test_file_that_does_not_exist(name: str) -> None:
    line = f"model file '{name}' does not exist; give the path of a .gguf file, or files of the hub"
    with pytest.raises(ConfigurationError, match=line):
        locate_model(name)


@pytest.mark.parametrize("name", ["models", "models/tiny.gguf"])
@pytest.mark.usefixtures("file")
def test_kind_of_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"{name} is on this machine, .*: leave out ':Q8_0', or give the path of a .gguf file"
    with pytest.raises(ConfigurationError, match=line):
        locate_model(f"{name}:Q8_0")


def test_served_name_is_the_argument(file: Path) -> None:
    config = EngineArgs(model=str(file)).model_config()
    assert config.served_name == str(file)
    assert Path(config.model).is_dir()


@pytest.fixture
def fetched(file: Path, source: Path) -> Iterator[list[str]]:
    write_gguf(source, file.parent / "split.gguf", max_tensors=12)
    parts = {one.name: one.read_bytes() for one in file.parent.glob("split-*")}
    content = file.read_bytes()
    repositories = {
        "org/tiny-GGUF": {
            "README.md": b"#",
            "tiny-Q4_K_M.gguf": content,
            "tiny-Q4_K_S.gguf": content,
            "mmproj-tiny-Q4_K_M.gguf": b"m",
            **{f"Q8_0/{name}": part for name, part in parts.items()},
            "a/tiny-F16.gguf": content,
            "b/tiny-F16.gguf": content,
        }
    }
    with only_hub(repositories) as fetched:
        yield fetched


def test_repository_and_kind(fetched: list[str], tmp_path: Path) -> None:
    downloads = str(tmp_path / "downloads")
    for kind, names in (
        ("Q4_K_M", ["tiny-Q4_K_M.gguf"]),
        ("q8_0", [f"Q8_0/split-{i:05}-of-00002.gguf" for i in (1, 2)]),
    ):
        fetched.clear()
        directory = locate_model(f"org/tiny-GGUF:{kind}", download_dir=downloads)
        assert sorted(fetched) == names
        assert (Path(directory) / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/tiny-GGUF:Q5_0", "has no model of Q5_0; it has Q8_0/split, a/tiny-F16.gguf, b/"),
        ("org/tiny-GGUF:F16", "has several models of F16: a/tiny-F16.gguf, b/tiny-F16.gguf"),
        ("org/nothing:F16", "is neither a directory nor a model on the hub"),
    ],
)
@pytest.mark.usefixtures("fetched")
def test_kind_that_a_repository_lacks(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        locate_model(name, download_dir=str(tmp_path / "downloads"))


@pytest.mark.parametrize("name", ["~no-such-user/model", "a" * 5000])
def test_names_that_are_no_paths(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"model path '.* is not valid: "):
        locate_model(name)


def test_lora_adapter(tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).touch()
    line = "is a LoRA adapter, not a model: give its base model, and the adapter with --merge-lora"
    with pytest.raises(ConfigurationError, match=line):
        locate_model(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"contains no tokenizer\.json"):
        locate_model(str(tmp_path), "tokenizer")
    (tmp_path / "config.json").write_text("{}")  # as of merged weights beside their adapter
    assert locate_model(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("dmeo", "; did you mean demo?"), ("llama", ""), ("org/dmeo", ""), ("demo", "")],
)
def test_suggestion_for_a_mistyped_name(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as error, suggesting(name):
        raise ConfigurationError("not found")
    assert str(error.value) == f"not found{hint}"


def test_path_gets_no_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dmeo").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"damaged$"), suggesting("dmeo"):
        raise ConfigurationError("damaged")


MISTYPED = r"dmeo is neither a directory nor a model on the hub .*; did you mean demo\?"


def test_serve_and_llm_suggest_the_same_model() -> None:
    with only_hub({}):
        with pytest.raises(ConfigurationError, match=MISTYPED):
            check_before_start(EngineArgs(model="dmeo"), ReplicaArgs())
        with pytest.raises(ConfigurationError, match=MISTYPED):
            LLM("dmeo")


def test_convert_suggests_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_hub({}):
        assert main(["convert", "dmeo", "--out", str(tmp_path / "out")]) == 2
    assert re.search(MISTYPED, capsys.readouterr().err)


@pytest.mark.parametrize(("name", "meant"), [("ngram", r"\[ngram\]"), ("demo-drfat", "demo-draft")])
def test_suggestion_for_a_drafter(name: str, meant: str) -> None:
    args = EngineArgs(model="demo", speculative_model=name)
    with only_hub({}), pytest.raises(ConfigurationError, match=rf"did you mean {meant}\?"):
        args.speculative_kind()
