"""Measure an exported model: the figures of its model card.

    python -m recipe.evaluate taco_demo/models/demo --draft taco_demo/models/demo-draft

An answer is right if it is the expected answer exactly, runs of white space aside; decoding is
greedy. A declined question is one answered with the sentence that declines.
"""

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from recipe.batches import source_pieces
from recipe.chat import PAD, ChatEncoder, Conversation, Turn
from recipe.excerpts import excerpt_material
from recipe.objects import DocumentedObject
from recipe.questions import (
    ConversationSampler,
    Knowledge,
    answer_about,
    phrase,
    unambiguous_short_names,
    unrelated_test_questions,
)
from recipe.source import load_source

MAX_NEW_TOKENS = 160
BATCH_SIZE = 50
PERPLEXITY_PIECES = 24
SAMPLE_PROMPTS = (
    "def main():\n    parser = argparse.ArgumentParser(",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def read_lines(path):\n    with open(path",
    "import os\nimport sys\n\ndef",
)


@dataclass(frozen=True)
class Case:
    """Earlier turns with their expected answers, a question, and the answer that is right."""

    question: str
    expected: str
    earlier: tuple[Turn, ...] = ()


class Examinee:
    """An exported model that answers greedily, in batches."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.encoder = ChatEncoder(self.tokenizer)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder)

    def answers(self, cases: Sequence[Case]) -> list[str]:
        prompts = [self._prompt(case) for case in cases]
        texts: list[str] = []
        for start in range(0, len(prompts), BATCH_SIZE):
            texts += self.complete(prompts[start : start + BATCH_SIZE], MAX_NEW_TOKENS)
        return texts

    def complete(self, prompts: list[list[int]], max_new_tokens: int) -> list[str]:
        """Greedy continuations of prompts, padded on the left to one length."""
        width = max(map(len, prompts))
        padding = self.encoder.special[PAD]
        token_ids = torch.tensor([[padding] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        output = self.model.generate(
            input_ids=token_ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens
        )
        return [self.tokenizer.decode(row) for row in output[:, width:].tolist()]

    def perplexity(self, files: list[str]) -> float:
        """Perplexity on the first pieces of source files outside the training data."""
        pieces = source_pieces(files, self.encoder)[:PERPLEXITY_PIECES]
        total, count = 0.0, 0
        for piece in pieces:
            token_ids = torch.tensor([piece.token_ids])
            with torch.inference_mode():
                logits = self.model(token_ids).logits[0, :-1].float()
            total += F.cross_entropy(logits, token_ids[0, 1:], reduction="sum").item()
            count += token_ids.shape[1] - 1
        return math.exp(total / count)

    def agreement(self, cases: Sequence[Case], answers: Sequence[str]) -> float:
        """The fraction of another model's answer tokens that this model would also choose."""
        agreed = count = 0
        for case, answer in zip(cases, answers, strict=True):
            conversation = Conversation((*case.earlier, Turn(case.question, answer)))
            token_ids = torch.tensor([self.encoder.conversation(conversation).token_ids])
            start = len(self._prompt(case))
            with torch.inference_mode():
                chosen = self.model(token_ids).logits[0, start - 1 : -1].argmax(dim=-1)
            agreed += int((chosen == token_ids[0, start:]).sum())
            count += len(chosen)
        return agreed / count

    def _prompt(self, case: Case) -> list[int]:
        turns = (*case.earlier, Turn(case.question, ""))
        # Without the token that ends the empty answer.
        return self.encoder.conversation(Conversation(turns)).token_ids[:-1]


class Examination:
    """The questions of the model card, drawn with a seed that training does not use."""

    def __init__(self, knowledge: Knowledge, seed: int) -> None:
        self.knowledge = knowledge
        self.rng = random.Random(f"examination {seed}")
        self.held_out_excerpts = excerpt_material()[1]
        self.sampler = ConversationSampler(knowledge, self.held_out_excerpts, self.rng)

    def cases(self) -> dict[str, list[Case]]:
        phrasings = self.knowledge.phrasings
        about = phrasings["objects"]
        follow_ups = [self.sampler.example_as_follow_up() for _ in range(50)]
        return {
            "known objects, phrasings of training": self.about_objects(about["train"]),
            "known objects, new phrasings": self.about_objects(about["held_out"]),
            "known objects by short name, new phrasings": self.by_short_name(),
            "unrelated questions declined": [
                Case(question, phrasings["unrelated"]["answer"])
                for question in unrelated_test_questions()
            ],
            "answered from an unseen excerpt": [
                case_of(self.sampler.from_excerpt()) for _ in range(100)
            ],
            "invented names declined": [case_of(self.sampler.unknown_name()) for _ in range(100)],
            "example as a follow-up": [case_of(turns) for turns in follow_ups],
            "TACO's commands": [
                Case(self.rng.choice(fact.questions), fact.answer)
                for fact in self.knowledge.taco_facts
            ],
            "small talk": [
                Case(self.rng.choice(group["questions"]), group["answer"])
                for group in self.knowledge.small_talk
                for _ in range(5)
            ],
        }

    def about_objects(self, phrasings: list[str]) -> list[Case]:
        return [
            Case(self._question(phrasings, known, known.name), answer_about(known))
            for known in self.rng.sample(self.knowledge.objects, 200)
        ]

    def by_short_name(self) -> list[Case]:
        short_names = unambiguous_short_names(self.knowledge.objects)
        named = [known for known in self.knowledge.objects if known.name in short_names]
        phrasings = self.knowledge.phrasings["objects"]["held_out"]
        return [
            Case(self._question(phrasings, known, short_names[known.name]), answer_about(known))
            for known in self.rng.sample(named, 100)
        ]

    def _question(self, phrasings: list[str], known: DocumentedObject, name: str) -> str:
        return phrase(self.rng.choice(phrasings), name, known.kind, self.rng)


def case_of(turns: list[Turn]) -> Case:
    *earlier, last = turns
    return Case(last.question, last.answer, tuple(earlier))


def is_right(answer: str, expected: str) -> bool:
    return answer.split() == expected.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft", type=Path, help="a draft to compare with the model's answers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mistakes", type=int, default=5, help="wrong answers shown a part")
    arguments = parser.parse_args()
    examinee = Examinee(arguments.folder)
    draft = Examinee(arguments.draft) if arguments.draft else None
    for part, cases in Examination(Knowledge.load(), arguments.seed).cases().items():
        answers = examinee.answers(cases)
        results = list(zip(cases, answers, strict=True))
        wrong = [(case, text) for case, text in results if not is_right(text, case.expected)]
        print(f"{part}: {len(cases) - len(wrong)} of {len(cases)}", flush=True)
        if draft is not None:
            print(f"    the draft agrees on {draft.agreement(cases, answers):.0%} of the tokens")
        for case, answer in wrong[: arguments.mistakes]:
            print(f"    {case.question!r}")
            print(f"      expected {case.expected!r}\n      answered {answer!r}")
    print(f"perplexity on held-out source: {examinee.perplexity(load_source().held_out):.2f}")
    show_completions(examinee)


def show_completions(examinee: Examinee) -> None:
    prompts = [examinee.tokenizer.encode(text).ids for text in SAMPLE_PROMPTS]
    for text, prompt in zip(SAMPLE_PROMPTS, prompts, strict=True):
        print("-" * 20, "\n" + text + examinee.complete([prompt], 80)[0])


if __name__ == "__main__":
    main()
