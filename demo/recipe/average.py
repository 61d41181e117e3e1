"""Averages several checkpoints of one model ("model soup", Wortsman et al. 2022).

    python -m recipe.average demo --checkpoints /tmp/first /tmp/second --out /tmp/mean

Use it for runs that continue one another: their mean has a lower loss than each of them.
"""

import argparse
import shutil
from pathlib import Path

import torch


def average(name: str, checkpoints: list[Path], out: Path) -> None:
    """Leaves tokenizer.json and NAME.pt in out, as training does."""
    states = [torch.load(folder / f"{name}.pt", weights_only=True) for folder in checkpoints]
    mean = {key: torch.stack([state[key] for state in states]).mean(dim=0) for key in states[0]}
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(checkpoints[0] / "tokenizer.json", out / "tokenizer.json")
    torch.save(mean, out / f"{name}.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--checkpoints", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    average(arguments.name, arguments.checkpoints, arguments.out)


if __name__ == "__main__":
    main()
