"""Train a demo model for a number of minutes.

    python -m recipe.train demo --minutes 95 --out /tmp/demo-checkpoints
    python -m recipe.train demo-draft --minutes 10 --out /tmp/demo-checkpoints

The learning rate follows the clock, not the step count, so that a run ends on time on any machine.
A checkpoint is written every few minutes and at the end.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from recipe.batches import Batch, ConversationRows, LongRows
from recipe.chat import ChatEncoder
from recipe.excerpts import excerpt_material
from recipe.model import SHAPES, CausalLM
from recipe.questions import ConversationSampler, Knowledge
from recipe.source import load_source
from recipe.tokenizer import train_tokenizer

SHORT_ROWS_A_STEP = 6
LONG_ROW_INTERVAL = 2  # steps
MUON_LEARNING_RATE = 0.02
ADAMW_LEARNING_RATE = 2e-3
CONTINUED_SHARE = 0.4  # of the learning rates, if training continues from a checkpoint
WARM_UP_SHARE = 0.02
FINAL_LEARNING_RATE_SHARE = 0.02
WEIGHT_DECAY = 0.01
MAX_GRADIENT_NORM = 1.0
CHECKPOINT_SECONDS = 300
LOG_STEPS = 150  # at least LONG_ROW_INTERVAL


def train(name: str, minutes: float, out: Path, start: Path | None, seed: int) -> None:
    """Train the model called name and leave tokenizer.json and NAME.pt in out.

    start is None or the out folder of an earlier run, from which training goes on.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    knowledge, source = Knowledge.load(), load_source()
    model = CausalLM(SHAPES[name])
    if start is None:
        tokenizer, peak = train_tokenizer(knowledge, source), 1.0
    else:
        tokenizer, peak = Tokenizer.from_file(str(start / "tokenizer.json")), CONTINUED_SHARE
        model.load_state_dict(torch.load(start / f"{name}.pt", weights_only=True))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))

    encoder = ChatEncoder(tokenizer)
    sampler = ConversationSampler(knowledge, excerpt_material()[0], rng)
    short_rows = ConversationRows(sampler, encoder)
    long_rows = LongRows(source.train, sampler, encoder, rng)
    optimizers = make_optimizers(model)
    log = ProgressLog()
    last_saved = time.monotonic()
    for step, progress in enumerate(progress_through(minutes)):
        log.add("conversations", *backward(model, short_rows.take(SHORT_ROWS_A_STEP)))
        if step % LONG_ROW_INTERVAL == 0:
            log.add("long rows", *backward(model, long_rows.take(1)))
        update(model, optimizers, peak * learning_rate_share(progress))
        if step % LOG_STEPS == LOG_STEPS - 1:
            log.show(step + 1)
        if time.monotonic() - last_saved > CHECKPOINT_SECONDS:
            save(model, out / f"{name}.pt")
            last_saved = time.monotonic()
    save(model, out / f"{name}.pt")
    print(f"{name}: {log.num_tokens:,} tokens in {minutes:g} minutes")


def progress_through(minutes: float) -> Iterator[float]:
    """Yields the elapsed fraction of the training time until it reaches 1.0."""
    started = time.monotonic()
    while (progress := (time.monotonic() - started) / (60 * minutes)) < 1:
        yield progress


def update(model: CausalLM, optimizers: list[torch.optim.Optimizer], rate_share: float) -> None:
    """One optimizer step at a fraction of the peak learning rates."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * rate_share
        optimizer.step()
        optimizer.zero_grad()


def save(model: CausalLM, path: Path) -> None:
    """Write a checkpoint atomically: a reader of path sees the old or the new file."""
    partial = path.with_suffix(".partial")
    torch.save(model.state_dict(), partial)
    partial.replace(path)


class ProgressLog:
    """Log the mean losses since the last line, and the training speed."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.num_tokens = 0
        self._losses: dict[str, list[float]] = {}

    def add(self, part: str, loss: float, num_tokens: int) -> None:
        self._losses.setdefault(part, []).append(loss)
        self.num_tokens += num_tokens

    def show(self, step: int) -> None:
        elapsed = time.monotonic() - self.started
        means = [f"{part} {sum(losses) / len(losses):.3f}" for part, losses in self._losses.items()]
        speed = f"{self.num_tokens / elapsed:.0f} tokens/s"
        print(f"{elapsed:.0f} s, step {step}, {speed}: {', '.join(means)}", flush=True)
        self._losses.clear()


def backward(model: CausalLM, batch: Batch) -> tuple[float, int]:
    """Add a batch's gradients; returns the mean loss of its targets and its number of tokens."""
    trained = batch.labels.flatten() != -100
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.hidden_states(batch.token_ids, batch.positions, batch.mask)
        # Logits of targets only: the vocabulary is a large part of a small model.
        logits = model.logits(hidden.flatten(0, 1)[trained])
    loss = F.cross_entropy(logits.float(), batch.labels.flatten()[trained])
    loss.backward()
    return loss.item(), batch.token_ids.numel()


def make_optimizers(model: CausalLM) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the layers' matrices, AdamW for embedding and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    scales = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(matrices, lr=MUON_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    adamw = torch.optim.AdamW(
        [model.model.embed_tokens.weight, *scales],
        lr=ADAMW_LEARNING_RATE,
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=True,
    )
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return [muon, adamw]


def learning_rate_share(progress: float) -> float:
    """Linear warm-up, then a cosine down to a small share; progress runs from 0 to 1."""
    if progress < WARM_UP_SHARE:
        return progress / WARM_UP_SHARE
    cosine = (1 + math.cos(math.pi * (progress - WARM_UP_SHARE) / (1 - WARM_UP_SHARE))) / 2
    return FINAL_LEARNING_RATE_SHARE + (1 - FINAL_LEARNING_RATE_SHARE) * cosine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--start", type=Path, help="folder of an earlier run to go on from")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(arguments.name, arguments.minutes, arguments.out, arguments.start, arguments.seed)


if __name__ == "__main__":
    main()
