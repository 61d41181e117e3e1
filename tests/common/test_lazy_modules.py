"""Modules that run when they are first used."""

import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from support.patience import PATIENCE_SECONDS
from taco_common.lazy_modules import lazy_modules

PACKAGE = "a_lazy_package"
USED, UNUSED, NEEDY = (f"{PACKAGE}.{name}" for name in ("used", "unused", "needy"))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The modules of a package that have run, in order."""
    done: list[str] = []
    files = {
        "__init__": "from . import used, unused\nimport a_lazy_package.used\n",
        "used": "VALUE = 1\nfrom a_lazy_package.unused import OTHER\n",
        "unused": "OTHER = 2\n",
        "needy": "",
    }
    for name, text in files.items():
        file = tmp_path / PACKAGE / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"import sys\nsys.the_runs.append(__name__)\n{text}")
    monkeypatch.setattr(sys, "the_runs", done, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    finders = [*sys.meta_path]
    yield done
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]


def test_a_module_runs_when_an_attribute_is_read(runs: list[str]) -> None:
    with lazy_modules({USED, UNUSED}):
        package = import_module(PACKAGE)
    assert runs == [PACKAGE]
    import_module(USED)
    assert runs == [PACKAGE]
    assert package.used.VALUE == 1
    assert runs == [PACKAGE, USED, UNUSED]
    assert package.unused.OTHER == package.used.OTHER == 2
    assert len(runs) == 3
    assert type(package.used) is type(sys)
    with pytest.raises(AttributeError, match=r"a_lazy_package\.used.*MISSING"):
        _ = package.used.MISSING


def test_modules_run_at_once_outside_of_the_block(runs: list[str]) -> None:
    with lazy_modules({USED}):
        pass
    import_module(PACKAGE)
    assert runs == [PACKAGE, USED, UNUSED]


def test_all_run_before_a_module_that_needs_them(runs: list[str]) -> None:
    with lazy_modules({USED, UNUSED}, until={NEEDY}):
        import_module(PACKAGE)
    import_module(NEEDY)
    assert runs == [PACKAGE, USED, UNUSED, NEEDY]


def test_a_module_that_failed_may_be_tried_again(runs: list[str], tmp_path: Path) -> None:
    file = tmp_path / PACKAGE / "unused.py"
    text = file.read_text()
    file.write_text("raise OSError('busy')\n")
    with lazy_modules({USED, UNUSED}):
        package = import_module(PACKAGE)
    with pytest.raises(OSError, match="busy"):
        _ = package.unused.OTHER
    file.write_text(text + "# so that the file has another size\n")
    assert package.unused.OTHER == 2


def test_other_threads_wait_for_the_end(
    runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "the_events", (begun, may_end), raising=False)
    file = tmp_path / PACKAGE / "unused.py"
    begin = "import sys\nbegun, may_end = sys.the_events\nbegun.set()\nassert may_end.wait(60)\n"
    file.write_text(begin + file.read_text())
    with lazy_modules({USED, UNUSED}):
        package = import_module(PACKAGE)
    values: list[int] = []
    threads = [
        threading.Thread(target=lambda: values.append(package.unused.OTHER)) for _ in range(2)
    ]
    threads[0].start()
    assert begun.wait(PATIENCE_SECONDS)
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert values == [2, 2]
    assert runs == [PACKAGE, UNUSED]
