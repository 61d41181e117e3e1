"""Programs for tests, forked from a process that has imported torch, which takes seconds."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from support.patience import PATIENCE_SECONDS
from support.train_processes import PRELOADED


class ForkedProgram:
    """A program in a separate process.

    Args:
        main: the program; its value, if not None, is the exit code.
        arguments: of the program.
        folder: gets its output, in the files `program.out` and `program.err`.
        environment: further variables.
    """

    def __init__(
        self,
        main: Callable[[list[str]], int | None],
        *arguments: str | Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._files = [folder / "program.out", folder / "program.err"]
        self._process = context.Process(
            target=_run,
            args=(
                main,
                list(map(str, arguments)),
                {**os.environ, **(environment or {})},
                os.getcwd(),
                self._files,
            ),
            daemon=True,
        )
        for file in self._files:
            file.touch()
        self._process.start()

    @property
    def exit_code(self) -> int | None:
        """Negative after a signal; None while it runs."""
        return self._process.exitcode

    @property
    def stdout(self) -> str:
        return self._files[0].read_text()

    @property
    def stderr(self) -> str:
        return self._files[1].read_text()

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self) -> int:
        """The exit code.

        Raises:
            AssertionError: it does not end; it is killed.
        """
        self._process.join(PATIENCE_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"the program still runs:\n{self.stdout}{self.stderr}")
        return self._process.exitcode


def _run(
    main: Callable[[list[str]], int | None],
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    files: list[Path],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, file in enumerate(files, 1):
        with file.open("w") as opened:
            os.dup2(opened.fileno(), descriptor)
    sys.exit(main(arguments))
