"""Finds names and sentences that use words which the project has replaced (`make words`).

`words.yaml` beside this file lists the words and what to write instead. The check reads the files
that git tracks: names, docstrings, comments and texts of Python, comments of C++, protobuf, YAML
and shell, and Markdown, whose lines are also limited to 120 characters.

    python tools/check_words.py [PATH ...]
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORDS = Path(__file__).with_name("words.yaml")
MAX_MARKDOWN_COLUMNS = 120

_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
# What begins a comment, by file suffix.
_COMMENTS = {
    ".h": "//",
    ".cpp": "//",
    ".proto": "//",
    ".yaml": "#",
    ".yml": "#",
    ".sh": "#",
    ".tpl": "#",
}
_GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
_FENCE = re.compile(r"^\s*(```|~~~)")


@dataclass(frozen=True)
class Words:
    """The content of words.yaml.

    Attributes:
        identifiers: by banned word, what to write instead.
        prose: banned expressions, with what to write instead.
        allowed: patterns of the paths that are not checked.
    """

    identifiers: dict[str, str]
    prose: tuple[tuple[re.Pattern[str], str], ...]
    allowed: tuple[str, ...]

    @classmethod
    def load(cls, path: Path) -> "Words":
        content = yaml.safe_load(path.read_text())
        prose = ((re.compile(row["pattern"], re.I), row["instead"]) for row in content["prose"])
        return cls(
            identifiers=content["identifiers"],
            prose=tuple(prose),
            allowed=tuple(row["path"] for row in content["allow"]),
        )

    def skips(self, path: str) -> bool:
        return any(fnmatch(path, pattern) for pattern in self.allowed)


@dataclass(frozen=True)
class Finding:
    line: int
    text: str
    instead: str


def check(path: str, text: str, words: Words) -> list[Finding]:
    """The findings in one file, in the order of its lines.

    Args:
        path: relative to the repository; its suffix says how the file is read.
    """
    if path.endswith(".py"):
        names, prose = _python_names(text), _python_prose(text)
    elif path.endswith(".md"):
        names, prose = iter(()), enumerate(text.splitlines(), start=1)
    else:
        names, prose = iter(()), _comments(text, _COMMENTS[Path(path).suffix])
    findings = [*_check_names(names, words), *_check_prose(prose, words)]
    if path.endswith(".md"):
        findings += _long_lines(text)
    return sorted(findings, key=lambda finding: finding.line)


def _check_names(names: Iterable[tuple[int, str]], words: Words) -> Iterator[Finding]:
    for line, name in names:
        snake = f"_{'_'.join(_CAMEL.findall(name))}_".lower()
        for word, instead in words.identifiers.items():
            if f"_{word}_" in snake:
                yield Finding(line, name, instead)


def _check_prose(lines: Iterable[tuple[int, str]], words: Words) -> Iterator[Finding]:
    for line, text in lines:
        for pattern, instead in words.prose:
            if match := pattern.search(text):
                yield Finding(line, match.group(), instead)


def _long_lines(text: str) -> Iterator[Finding]:
    """Lines of Markdown that are too long; tables, code and lines of one word cannot be wrapped."""
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if _FENCE.match(line):
            in_code = not in_code
        can_wrap = not in_code and not line.lstrip().startswith("|") and " " in line.strip()
        if can_wrap and len(line) > MAX_MARKDOWN_COLUMNS:
            yield Finding(number, f"{len(line)} characters", f"at most {MAX_MARKDOWN_COLUMNS}")


def _python_names(text: str) -> Iterator[tuple[int, str]]:
    """Where names are bound: definitions, parameters, assignments, attributes and imports."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute():
                yield node.lineno, node.attr
            case ast.ImportFrom(module=str(module)):
                yield node.lineno, module


def _python_prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of comments and strings. A string without a space is data, such as a key."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = token.type == tokenize.STRING and " " in token.string
        is_text |= tokenize.tok_name[token.type] == "FSTRING_MIDDLE"
        if token.type == tokenize.COMMENT or is_text:
            yield from enumerate(token.string.splitlines(), start=token.start[0])


def _comments(text: str, marker: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if marker in line:
            yield number, line.partition(marker)[2]


def _tracked_files(paths: list[str]) -> list[str]:
    command = ["git", "ls-files", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    suffixes = {".py", ".md", *_COMMENTS}
    return [
        path
        for path in listed.splitlines()
        if Path(path).suffix in suffixes and not path.endswith(_GENERATED)
    ]


def main(paths: list[str]) -> int:
    words = Words.load(WORDS)
    num_findings = 0
    for path in _tracked_files(paths):
        if words.skips(path) or not (ROOT / path).is_file():
            continue
        for finding in check(path, (ROOT / path).read_text(), words):
            print(f"{path}:{finding.line}: {finding.text!r}: write {finding.instead}")
            num_findings += 1
    if num_findings:
        print(f"{num_findings} findings; tools/words.yaml has the words", file=sys.stderr)
    return int(num_findings > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
