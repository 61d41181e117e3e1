"""Links and paths that the pages name lead somewhere."""

import glob
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "bench/**/*.md", ".github/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # names what there was
)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"")
_PATH = re.compile(r"`([\w.-]+/[\w./*{},-]*)`(?! \(new\))")
_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
MADE_BY_A_RUN = (
    "docs/cli.md",
    "build/",
    "dist/",
    "site/",
    "bench/results/gpu/",
    "kernels/taco_kernels/lib",
)


def tracked() -> set[str]:
    """Files and folders that git has or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {name for name in files.split("\n") if name and (ROOT / name).exists()}
    return names | {str(parent) for name in names for parent in Path(name).parents}


TRACKED = tracked()
TOP_FOLDERS = {name.partition("/")[0] for name in TRACKED if "/" in name} - {".github", ".ci"}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files(page: Path) -> None:
    text = _FENCE.sub("", (ROOT / page).read_text())
    missing = []
    for groups in _LINK.findall(text):
        target = next(filter(None, groups))
        resolved = str((ROOT / page).parent.joinpath(target).resolve().relative_to(ROOT))
        if resolved not in TRACKED and not resolved.startswith(MADE_BY_A_RUN):
            missing.append(target)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_named_paths_exist(page: Path) -> None:
    """A path in backticks that begins with a folder's name, unless "(new)" follows it.

    It starts at the root or at the page's folder.
    """
    missing = []
    for name in _PATH.findall(_FENCE.sub("", (ROOT / page).read_text())):
        folder = name.partition("/")[0]
        if folder not in TOP_FOLDERS or name.startswith(MADE_BY_A_RUN):
            continue
        paths = [name.rstrip("/"), str(page.parent / name.rstrip("/"))]
        if not any(found(pattern) for path in paths for pattern in alternatives(path)):
            missing.append(name)
    assert missing == []


def alternatives(name: str) -> list[str]:
    """`a/{b,c}.py` as `a/b.py` and `a/c.py`."""
    match = re.search(r"\{([^}]*)\}", name)
    if match is None:
        return [name]
    return [name.replace(match[0], choice) for choice in match[1].split(",")]


def found(pattern: str) -> bool:
    """Whether there is such a file or folder; a word in capitals may stand for any name."""
    if pattern in TRACKED:
        return True
    pattern = re.sub(r"\b[A-Z]{3,}\b", "*", pattern)
    if "*" not in pattern:
        return False
    return any(path in TRACKED for path in glob.glob(pattern, root_dir=ROOT, recursive=True))
