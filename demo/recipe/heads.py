"""Train heads that draft for a demo model, and write them as published checkpoints.

    python -m recipe.heads --target taco_demo/models/demo --minutes 8 --out /tmp/heads

Medusa and EAGLE heads learn side by side from one pass of the target over each batch: what the
target itself would say next, and not what stands in the data. The target stays as it is.
"""

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from recipe.batches import Batch, ConversationRows
from recipe.chat import ChatEncoder
from recipe.excerpts import excerpt_material
from recipe.heads_model import EagleHead, MedusaHeads, eagle_config, medusa_config
from recipe.model import TARGET, CausalLM
from recipe.questions import ConversationSampler, Knowledge
from recipe.train import ProgressLog, learning_rate_share, progress_through

MEDUSA, EAGLE = "demo-medusa", "demo-eagle"
MEDUSA_FILE, EAGLE_FILE = "medusa_lm_head.safetensors", "model.safetensors"
ROWS_A_STEP = 4
LEARNING_RATE = 2e-3
CONTINUED_SHARE = 0.5  # of the learning rate, if training continues from a checkpoint
# EAGLE's output is also its own next input: it must look like a feature and give the logits.
FEATURE_LOSS_WEIGHT = 0.3
# Passes of a batch through EAGLE. Each pass uses the output of the pass before, as a draft token
# follows draft tokens (training-time test, Li et al. 2025).
EAGLE_PASSES = 2
LOG_STEPS = 40


@dataclass(frozen=True)
class Lesson:
    """A batch and the target model's outputs for it, of shape (rows, length, ...), no gradients.

    Attributes:
        hidden: final hidden states.
        expected: the target's probabilities of the next token.
        has_next: whether the next token belongs to the same document.
        is_target: whether the next token belongs to the answer.
    """

    batch: Batch
    hidden: Tensor
    expected: Tensor
    has_next: Tensor
    is_target: Tensor


def train(
    target: CausalLM,
    tokenizer: Tokenizer,
    minutes: float,
    out: Path,
    start: Path | None,
    seed: int,
) -> None:
    """Train both kinds of heads together for some minutes, and write them to folders in out.

    start is None, or the out folder of an earlier run from which training continues.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    encoder = ChatEncoder(tokenizer)
    sampler = ConversationSampler(Knowledge.load(), excerpt_material()[0], rng)
    rows = ConversationRows(sampler, encoder)
    medusa, eagle, rate = MedusaHeads(), EagleHead(), LEARNING_RATE
    if start is not None:
        medusa.load_state_dict(load_file(start / MEDUSA / MEDUSA_FILE))
        eagle.load_state_dict(load_file(start / EAGLE / EAGLE_FILE))
        rate *= CONTINUED_SHARE
    parameters = [*medusa.parameters(), *eagle.parameters()]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    log = ProgressLog()
    for step, progress in enumerate(progress_through(minutes)):
        lesson = prepare(target, rows.take(ROWS_A_STEP))
        of_medusa = medusa_loss(medusa, target, lesson)
        of_eagle = eagle_loss(eagle, target, lesson)
        (of_medusa + of_eagle).backward()
        log.add("medusa", of_medusa.item(), lesson.batch.token_ids.numel())
        log.add("eagle", of_eagle.item(), 0)
        for group in optimizer.param_groups:
            group["lr"] = rate * learning_rate_share(progress)
        optimizer.step()
        optimizer.zero_grad()
        if step % LOG_STEPS == LOG_STEPS - 1:
            log.show(step + 1)
    write(out / MEDUSA, medusa_config(), medusa, MEDUSA_FILE)
    write(out / EAGLE, eagle_config(), eagle, EAGLE_FILE)


@torch.no_grad()
def prepare(target: CausalLM, batch: Batch) -> Lesson:
    hidden = target.hidden_states(batch.token_ids, batch.positions, batch.mask)
    expected = target.logits(hidden).softmax(dim=-1)
    has_next = F.pad(batch.positions[:, 1:] == batch.positions[:, :-1] + 1, (0, 1))
    return Lesson(batch, hidden, expected, has_next, batch.labels != -100)


def medusa_loss(heads: MedusaHeads, target: CausalLM, lesson: Lesson) -> Tensor:
    """Mean loss over heads. The label of token i + 2 + k is the target's choice after i + 1 + k."""
    total = torch.zeros(())
    goes_on = lesson.has_next
    for number, head in enumerate(heads, start=1):
        chosen = goes_on[:, :-1] & lesson.is_target[:, number:]
        guess = target.logits(head(lesson.hidden[:, :-number][chosen]))
        total = total + F.cross_entropy(guess, lesson.expected[:, number:][chosen])
        goes_on = goes_on[:, :-1] & lesson.has_next[:, number:]
    return total / len(heads)


def eagle_loss(head: EagleHead, target: CausalLM, lesson: Lesson) -> Tensor:
    """Mean loss over passes. In each pass the features come from one more draft step."""
    batch, hidden = lesson.batch, lesson.hidden
    embedded = target.model.embed_tokens(batch.token_ids.roll(-1, dims=1)).detach()
    truth = hidden.roll(-1, dims=1)
    chosen = lesson.has_next & lesson.is_target.roll(-1, dims=1)
    expected = lesson.expected.roll(-1, dims=1)[chosen]
    features, total = hidden, torch.zeros(())
    for _ in range(EAGLE_PASSES):
        outputs = head(embedded, features, batch.positions, batch.mask)
        total = total + F.cross_entropy(target.logits(outputs[chosen]), expected)
        distance = F.smooth_l1_loss(outputs[chosen], truth[chosen])
        total = total + FEATURE_LOSS_WEIGHT * distance
        is_first = batch.positions[..., None] == 0
        features = torch.where(is_first, hidden, outputs.roll(1, dims=1))
    return total / EAGLE_PASSES


def load_target(folder: Path) -> CausalLM:
    """An exported demo model, frozen."""
    target = CausalLM(TARGET)
    weights = load_file(folder / "model.safetensors")
    target.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return target.requires_grad_(False)


def write(folder: Path, config: dict[str, Any], heads: nn.Module, file: str) -> None:
    """A checkpoint in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = {name: tensor.bfloat16().contiguous() for name, tensor in heads.state_dict().items()}
    save_file(weights, folder / file, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of an exported model")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for both kinds")
    parser.add_argument("--start", type=Path, help="folder of an earlier run to go on from")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    target = load_target(arguments.target)
    train(
        target,
        tokenizer,
        arguments.minutes,
        arguments.out,
        arguments.start,
        arguments.seed,
    )


if __name__ == "__main__":
    main()
