"""Every file that names TACO's version names the one in pyproject.toml."""

import re
import subprocess
import tomllib

from support.dockerfiles import ROOT

# Image tags, archive names, chart versions, defaults of the compose file.
_VERSION = re.compile(
    r"(?:taco-[a-z-]+[:-]|appVersion: |^version: |VERSION:-|tag: |`VERSION` \| `)(\d+\.\d+\.\d+)\b",
    re.MULTILINE,
)


def test_every_file_names_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    listed = subprocess.run(
        ["git", "ls-files", "deploy", "docs", "README.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    pages = [name for name in listed if name.endswith((".md", ".yaml", ".Dockerfile"))]
    found = {name: _VERSION.findall((ROOT / name).read_text()) for name in pages}
    assert sum(map(len, found.values())) >= 15  # the pattern still matches existing files
    assert {name: set(versions) - {version} for name, versions in found.items() if versions} == {
        name: set() for name, versions in found.items() if versions
    }
