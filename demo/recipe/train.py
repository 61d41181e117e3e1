"""Train a demo model for a number of minutes.

    python -m recipe.train demo --minutes 60 --out /tmp/demo-checkpoints
    python -m recipe.train demo-draft --minutes 10 --out /tmp/demo-checkpoints

The learning rate follows the clock, not the step count, so that a run ends on time on any machine.
A checkpoint is written every few minutes and at the end.
"""

import argparse
import math
import random
import time
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
LONG_ROW_INTERVAL = 3  # steps
MUON_LEARNING_RATE = 0.02
ADAMW_LEARNING_RATE = 2e-3
WARM_UP_SHARE = 0.02
FINAL_LEARNING_RATE_SHARE = 0.02
WEIGHT_DECAY = 0.01
MAX_GRADIENT_NORM = 1.0
CHECKPOINT_SECONDS = 300
LOG_STEPS = 150  # a multiple of LONG_ROW_INTERVAL


def train(name: str, minutes: float, out: Path, seed: int) -> None:
    """Train the model called name and leave tokenizer.json and NAME.pt in out."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    knowledge, source = Knowledge.load(), load_source()
    tokenizer = train_tokenizer(knowledge, source)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    # A copy for encoding plain text: special tokens in it stay off in training data only.
    encoder = ChatEncoder(Tokenizer.from_file(str(out / "tokenizer.json")))
    sampler = ConversationSampler(knowledge, excerpt_material()[0], rng)
    short_rows = ConversationRows(sampler, encoder)
    long_rows = LongRows(source.train, sampler, encoder, rng)
    model = CausalLM(SHAPES[name])
    optimizers = make_optimizers(model)
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)

    progress_log = ProgressLog()
    started = last_saved = time.monotonic()
    step = 0
    while (progress := (time.monotonic() - started) / (60 * minutes)) < 1:
        progress_log.add("conversations", *backward(model, short_rows.take(SHORT_ROWS_A_STEP)))
        if step % LONG_ROW_INTERVAL == 0:
            progress_log.add("long rows", *backward(model, long_rows.take(1)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * learning_rate_share(progress)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % LOG_STEPS == 0:
            progress_log.show(step)
        if time.monotonic() - last_saved > CHECKPOINT_SECONDS:
            save(model, out / f"{name}.pt")
            last_saved = time.monotonic()
    save(model, out / f"{name}.pt")
    print(f"{name}: {step} steps, {progress_log.num_tokens:,} tokens in {minutes:g} minutes")


def save(model: CausalLM, path: Path) -> None:
    """Write a checkpoint; whoever reads path sees the old one or the new one, whole."""
    partial = path.with_suffix(".partial")
    torch.save(model.state_dict(), partial)
    partial.replace(path)


class ProgressLog:
    """Mean losses since the last line, and how fast training goes."""

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
    """Add a batch's gradients; gives the mean loss of its targets, and its number of tokens."""
    trained = batch.labels.flatten() != -100
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.hidden_states(batch.token_ids, batch.positions, batch.mask)
        # Logits of targets only: the vocabulary is a large share of so small a model.
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
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(arguments.name, arguments.minutes, arguments.out, arguments.seed)


if __name__ == "__main__":
    main()
