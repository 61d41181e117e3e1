"""Choose the best-known objects of Python's standard library and write ``objects.tsv``.

    python -m recipe.objects            # run with Python 3.11, whose documentation the list quotes

How well an object is known is measured by how often the library's own source and tests use its
module and its name. The list is checked in: training reads the list, never the running Python.
"""

import importlib
import inspect
import math
import re
import sys
import sysconfig
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

DATA = Path(__file__).parent / "data"
OBJECTS_PATH = DATA / "objects.tsv"
MODULES = tomllib.loads((DATA / "modules.toml").read_text(encoding="utf-8"))
NUM_OBJECTS = 2500
MAX_METHODS_PER_CLASS = 30
MAX_ARGUMENTS = 3
SIGNATURE = re.compile(r"[\w.\[\]]+\(.*(\)\s*|->.*|:|,)$")
SENTENCE_CHARACTERS = range(15, 181)


@dataclass(frozen=True)
class DocumentedObject:
    """One object of the standard library and the first sentence of its documentation.

    ``usage`` is what an example shows: a call with its required arguments, or an import.
    """

    kind: str
    name: str
    usage: str
    sentence: str


@dataclass(frozen=True)
class Candidate:
    documented: DocumentedObject
    module: str
    leaf: str
    documentation: str


def load_objects(path: Path = OBJECTS_PATH) -> list[DocumentedObject]:
    """Read the checked-in list: one object per line, four columns separated by tabs."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [DocumentedObject(*line.split("\t")) for line in lines if not line.startswith("#")]


def first_sentence(documentation: str) -> str | None:
    """The first sentence of a docstring on one line, or None without a usable sentence."""
    paragraph = re.sub(r"\s+", " ", _first_prose_paragraph(documentation)).strip()
    match = re.match(r".+?[\w)\]'\"`][.!?](?= |$)", _protect_abbreviations(paragraph))
    sentence = match[0].replace("\0", ".") if match else paragraph.rstrip(".:;,") + "."
    usable = (
        len(sentence) in SENTENCE_CHARACTERS
        and sentence.isascii()
        and len(sentence.split()) >= 3
        and not re.search(r"^\(|->|>>>|\.\.\.$|XXX|\\|<\||\w = ", sentence)
    )
    return sentence[0].upper() + sentence[1:] if usable else None


def _first_prose_paragraph(documentation: str) -> str:
    """Drop the signature lines that C docstrings begin with."""
    for paragraph in documentation.strip().split("\n\n"):
        lines = paragraph.strip().splitlines()
        while lines and SIGNATURE.match(lines[0].strip()):
            signature = lines.pop(0)
            while lines and signature.count("(") > signature.count(")"):
                signature += lines.pop(0)
            described = re.search(r"\) (?:--|-->|-) ([A-Z].*)", signature)
            if described:
                lines.insert(0, described[1])
                break
        if lines:
            return "\n".join(lines)
    return ""


def _protect_abbreviations(text: str) -> str:
    return re.sub(
        r"\b(e\.g|i\.e|a\.k\.a|etc|vs|cf)\.", lambda found: found[0].replace(".", "\0"), text
    )


def all_candidates() -> Iterator[Candidate]:
    """Every documented public object of the standard library."""
    seen: set[int] = set()
    for module_name in ["builtins", *public_modules()]:
        module = _import(module_name)
        if module is None:
            continue
        if module_name != "builtins":
            yield from _candidate("module", module_name, module, module_name, module_name)
        for leaf, member in _public_members(module):
            # Re-exported objects keep the name under which they were found first. Values such as
            # ints have no separate documentation.
            if inspect.ismodule(member) or not callable(member) or id(member) in seen:
                continue
            seen.add(id(member))
            prefix = "" if module_name == "builtins" else module_name + "."
            yield from _candidate(
                _kind(member, module_name), prefix + leaf, member, module_name, leaf
            )
            if inspect.isclass(member) and not issubclass(member, BaseException):
                yield from _methods(member, prefix + leaf, module_name)


def _import(module_name: str) -> ModuleType | None:
    """A module, or None if this Python or this system does not have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return importlib.import_module(module_name)
        except ImportError:
            return None


def public_modules() -> list[str]:
    top_level = sorted(
        name
        for name in sys.stdlib_module_names
        if not name.startswith("_") and name not in MODULES["skipped"]
    )
    return top_level + MODULES["submodules"]


def _public_members(module: ModuleType) -> list[tuple[str, object]]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, member in vars(module).items() if _is_at_home(member, module)]
    public = [name for name in names if not name.startswith("_") and hasattr(module, name)]
    return [(name, getattr(module, name)) for name in public]


def _is_at_home(member: object, module: ModuleType) -> bool:
    home = getattr(member, "__module__", None)
    return home in (None, module.__name__, "_" + module.__name__, "io")


def _methods(owner: type, owner_name: str, module_name: str) -> Iterator[Candidate]:
    for leaf in vars(owner):
        member = inspect.getattr_static(owner, leaf)
        if leaf.startswith("_") or not (callable(member) or _is_wrapped(member)):
            continue
        yield from _candidate("method", f"{owner_name}.{leaf}", member, module_name, leaf)


def _is_wrapped(member: object) -> bool:
    return isinstance(member, classmethod | staticmethod | property)


def _candidate(kind: str, name: str, member: object, module: str, leaf: str) -> Iterator[Candidate]:
    if isinstance(member, property):
        kind = "property"
    inherits = inspect.isclass(member) and not vars(member).get("__doc__")
    documentation = "" if inherits else inspect.getdoc(member) or ""
    sentence = first_sentence(documentation)
    if sentence:
        documented = DocumentedObject(kind, name, usage_of(kind, name, member, module), sentence)
        yield Candidate(documented, module, leaf, documentation)


def _kind(member: object, module_name: str) -> str:
    if inspect.isclass(member):
        return "exception" if issubclass(member, BaseException) else "class"
    if not inspect.isroutine(member):
        return "object"
    return "built-in function" if module_name == "builtins" else "function"


def usage_of(kind: str, name: str, member: object, module: str) -> str:
    """One line of Python that uses the object, as the model's example."""
    if kind == "module":
        return f"import {name}"
    if kind == "object":
        return name
    if kind == "exception":
        return f"raise {name}"
    if kind in ("method", "property"):
        owner, leaf = name.rsplit(".", 1)
        name = f"{variable_for(owner)}.{leaf}"
    return name if kind == "property" else f"{name}({', '.join(_required_arguments(member, kind))})"


def variable_for(owner: str) -> str:
    """A variable name for an instance: ``pathlib.PurePath`` becomes ``pure_path``."""
    leaf = owner.rsplit(".", 1)[-1]
    return {
        "str": "text", "list": "items", "dict": "mapping", "int": "number", "float": "number",
        "bytes": "data", "set": "items", "tuple": "items", "type": "cls", "object": "value",
    }.get(leaf, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", leaf).lower())  # fmt: skip


def _required_arguments(member: object, kind: str) -> list[str]:
    try:
        function: Any = (
            member.__func__ if isinstance(member, classmethod | staticmethod) else member
        )
        parameters = list(inspect.signature(function).parameters.values())
    except (AttributeError, TypeError, ValueError):
        return []
    if kind == "method" and not isinstance(member, staticmethod):
        parameters = parameters[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return [parameter.name.strip("_") for parameter in required[:MAX_ARGUMENTS]]


@dataclass(frozen=True)
class UsageCounts:
    """Number of files of the library and its tests that contain a module, a name or a pair."""

    modules: Counter[str]
    names: Counter[str]
    dotted: Counter[str]


def usage_counts() -> UsageCounts:
    counts = UsageCounts(Counter(), Counter(), Counter())
    for path in Path(sysconfig.get_path("stdlib")).rglob("*.py"):
        if "site-packages" in path.parts:
            continue
        source = path.read_text(encoding="utf-8", errors="ignore")
        counts.modules.update(set(re.findall(r"(?m)^\s*(?:import|from) ([\w.]+)", source)))
        counts.names.update(set(re.findall(r"\w+", source)))
        counts.dotted.update(set(re.findall(r"\b(?=(\w+\.\w+))", source)))
    return counts


def renown(candidate: Candidate, counts: UsageCounts) -> float:
    """A score of how well known an object is, comparable between objects, without a unit."""
    name, kind = candidate.documented.name, candidate.documented.kind
    owner = name.rpartition(".")[0]
    if candidate.module == "builtins" and owner in ("", *MODULES["core_types"]):
        return math.inf
    module = math.log1p(counts.modules[candidate.module])
    leaf = math.log1p(counts.names[candidate.leaf])
    if kind == "module":
        return 8 + module
    if kind in ("method", "property"):
        return leaf + math.log1p(counts.names[owner.rpartition(".")[2]]) + module - 4
    dotted = counts.dotted[f"{candidate.module.rsplit('.', 1)[-1]}.{candidate.leaf}"]
    return 2 * math.log1p(dotted) + leaf + module


def choose(candidates: list[Candidate], count: int) -> list[DocumentedObject]:
    """The best-known objects in alphabetical order, without duplicate names."""
    counts = usage_counts()
    per_class: Counter[str] = Counter()
    chosen: dict[str, DocumentedObject] = {}
    for candidate in sorted(candidates, key=lambda one: renown(one, counts), reverse=True):
        name = candidate.documented.name
        owner = name.rpartition(".")[0]
        is_method = candidate.documented.kind in ("method", "property")
        if is_method and owner not in MODULES["core_types"]:
            per_class[owner] += 1
            if per_class[owner] > MAX_METHODS_PER_CLASS:
                continue
        chosen.setdefault(name, candidate.documented)
        if len(chosen) == count:
            break
    return sorted(chosen.values(), key=lambda documented: documented.name.lower())


def main() -> None:
    objects = choose(list(all_candidates()), NUM_OBJECTS)
    version = sys.version.split()[0]
    header = f"# kind, name, usage, first sentence of the documentation of Python {version}"
    rows = ["\t".join((o.kind, o.name, o.usage, o.sentence)) for o in objects]
    OBJECTS_PATH.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    print(f"{len(objects)} objects, {OBJECTS_PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
