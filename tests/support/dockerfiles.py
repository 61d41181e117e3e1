"""Reading deploy/docker/*.Dockerfile."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile, its continued lines joined.

    Attributes:
        stage: name of its stage; empty before the first one and in the last.
    """

    stage: str
    name: str
    text: str


def read_dockerfile(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    instructions = []
    stage = ""
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        name, _, text = line.partition(" ")
        if name == "FROM":
            stage = text.partition(" AS ")[2]
        instructions.append(Instruction(stage, name, text.strip()))
    return instructions


def last(instructions: list[Instruction], name: str) -> str:
    """The text of the one instruction of that name in the last stage."""
    [text] = [x.text for x in instructions if x.name == name and not x.stage]
    return text


def words(instructions: list[Instruction], name: str) -> list[str]:
    """Of `ENTRYPOINT` or `CMD` in their exec form.

    Raises:
        ValueError: the instruction is in shell form.
    """
    found: list[str] = json.loads(last(instructions, name))
    return found


def installs(instructions: list[Instruction]) -> list[str]:
    """Shell commands of the last stage that install packages of Python, without their mounts."""
    return [
        re.sub(r"--mount=\S+\s*", "", x.text)
        for x in instructions
        if x.name == "RUN" and not x.stage and "pip install" in x.text
    ]
