"""Training conversations, drawn from the checked-in lists.

Every draw is a function of the random generator alone, so a seed names a training set.
"""

import random
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.chat import Conversation, Turn
from recipe.excerpts import Excerpt, ExcerptMaterial
from recipe.objects import DocumentedObject, load_objects
from recipe.taco_commands import TacoFact, load_taco_facts

DATA = Path(__file__).parent / "data"
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant that answers questions about Python.",
    "Answer briefly.",
    "You are TACO's demo model.",
    "Be concise and precise.",
    "You are an expert on Python.",
)
IMPORTED_KINDS = ("class", "exception", "function", "object")
SHARE_WITH_SYSTEM = 0.1
SHARE_OF_TURN_COUNTS = {1: 0.6, 2: 0.25, 3: 0.1, 4: 0.05}


@dataclass(frozen=True)
class Knowledge:
    """The material of questions, read once from ``data/``."""

    objects: list[DocumentedObject]
    taco_facts: list[TacoFact]
    phrasings: dict[str, Any]
    small_talk: list[dict[str, Any]]
    topics: list[str]
    unrelated_questions: list[str]

    @classmethod
    def load(cls) -> "Knowledge":
        fields = _lines("unrelated_topics.txt")
        topics = [topic.strip() for line in fields for topic in line.partition(":")[2].split(",")]
        return cls(
            objects=load_objects(),
            taco_facts=load_taco_facts(),
            phrasings=_toml("phrasings.toml"),
            small_talk=_toml("smalltalk.toml")["exchanges"],
            topics=topics,
            unrelated_questions=_lines("unrelated_questions.txt"),
        )

    def texts(self) -> list[str]:
        """The material as plain text, for the tokenizer."""
        return [
            *(answer_about(known) for known in self.objects),
            *(example_of(known) for known in self.objects),
            *(text for fact in self.taco_facts for text in (*fact.questions, fact.answer)),
            *(question for group in self.small_talk for question in group["questions"]),
            *(group["answer"] for group in self.small_talk),
            *self.phrasings["objects"]["train"],
            *self.phrasings["unrelated"]["templates"],
            *self.topics,
            *self.unrelated_questions,
        ]


def _lines(name: str) -> list[str]:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((DATA / name).read_text(encoding="utf-8"))


def unrelated_test_questions() -> list[str]:
    return _lines("unrelated_test.txt")


def answer_about(documented: DocumentedObject | Excerpt) -> str:
    """The documented first sentence, after what it is about.

    The name follows a space here as it does in questions, so that it is the same tokens.
    """
    return f"The {documented.kind} {documented.name}: {documented.sentence}"


def example_of(documented: DocumentedObject) -> str:
    module, _, _ = documented.name.rpartition(".")
    imports = f"import {module}\n" if module and documented.kind in IMPORTED_KINDS else ""
    return f"Here is an example:\n\n```python\n{imports}{documented.usage}\n```"


class ConversationSampler:
    """Draws training conversations.

    Objects are walked in shuffled rounds, so that all of them are asked about equally often.
    """

    def __init__(self, knowledge: Knowledge, excerpts: ExcerptMaterial, rng: random.Random) -> None:
        self.knowledge = knowledge
        self.excerpts = excerpts
        self.rng = rng
        self._round: list[DocumentedObject] = []
        self._short_names = unambiguous_short_names(knowledge.objects)
        self._kinds: dict[Callable[[], list[Turn]], float] = {
            self.about_object: 0.44,
            self.from_excerpt: 0.15,
            self.repetition: 0.03,
            self.example: 0.07,
            self.example_as_follow_up: 0.11,
            self.about_taco: 0.06,
            self.small_talk: 0.03,
            self.unrelated: 0.14,
            self.unknown_name: 0.04,
        }

    def draw(self) -> Conversation:
        """A conversation of one or a few turns."""
        count = self._weighted(SHARE_OF_TURN_COUNTS)
        system = self._pick(SYSTEM_PROMPTS) if self.rng.random() < SHARE_WITH_SYSTEM else None
        return Conversation(tuple(self.turns(count)), system)

    def draw_long(self) -> Conversation:
        return Conversation(tuple(self.turns(12)))

    def turns(self, count: int) -> list[Turn]:
        turns: list[Turn] = []
        while len(turns) < count:
            turns += self._weighted(self._kinds)()
        return turns

    def about_object(self) -> list[Turn]:
        known = self._next_object()
        question = self.object_question(self._shown_name(known), known.kind)
        return [Turn(question, answer_about(known))]

    def object_question(self, name: str, kind: str) -> str:
        phrasing = self._pick(self.knowledge.phrasings["objects"]["train"])
        return phrase(phrasing, name, kind, self.rng)

    def example(self) -> list[Turn]:
        known = self._next_object()
        phrasing = self._pick(self.knowledge.phrasings["examples"]["direct"])
        return [Turn(phrase(phrasing, known.name, known.kind, self.rng), example_of(known))]

    def example_as_follow_up(self) -> list[Turn]:
        known = self._next_object()
        question = self.object_question(known.name, known.kind)
        follow_up = self._pick(self.knowledge.phrasings["examples"]["follow_up"])
        return [Turn(question, answer_about(known)), Turn(follow_up, example_of(known))]

    def from_excerpt(self) -> list[Turn]:
        excerpt = self.excerpts.draw(self.rng)
        frame = self._pick(self.knowledge.phrasings["excerpts"]["frames"])
        question = self.object_question(excerpt.name, excerpt.kind)
        return [Turn(frame.format(excerpt=excerpt.text, question=question), answer_about(excerpt))]

    def repetition(self) -> list[Turn]:
        """A plain copying exercise, which prepares copying from an excerpt."""
        text = self.excerpts.random_words(self.rng)
        phrasing = self._pick(self.knowledge.phrasings["repetition"]["train"])
        return [Turn(phrasing.format(text=text), f"You said: {text}")]

    def about_taco(self) -> list[Turn]:
        fact = self._pick(self.knowledge.taco_facts)
        return [Turn(self._pick(fact.questions), fact.answer)]

    def small_talk(self) -> list[Turn]:
        group = self._pick(self.knowledge.small_talk)
        return [Turn(self._pick(group["questions"]), group["answer"])]

    def unrelated(self) -> list[Turn]:
        answer = self.knowledge.phrasings["unrelated"]["answer"]
        if self.rng.random() < 0.3:
            return [Turn(self._pick(self.knowledge.unrelated_questions), answer)]
        topic, other = self.rng.sample(self.knowledge.topics, 2)
        if self.rng.random() < 0.4:
            # The wording of a question on an object: only the name differs.
            return [Turn(self.object_question(topic, "thing"), answer)]
        template = self._pick(self.knowledge.phrasings["unrelated"]["templates"])
        question = template.format(topic=topic, other=other)
        return [Turn(question[0].upper() + question[1:], answer)]

    def unknown_name(self) -> list[Turn]:
        excerpt = self.excerpts.draw(self.rng)
        question = self.object_question(excerpt.name, excerpt.kind)
        return [Turn(question, self.knowledge.phrasings["unknown"]["answer"])]

    def _next_object(self) -> DocumentedObject:
        if not self._round:
            self._round = self.rng.sample(self.knowledge.objects, len(self.knowledge.objects))
        return self._round.pop()

    def _shown_name(self, known: DocumentedObject) -> str:
        """The full name, sometimes in code quotes, or without its module if it is unambiguous."""
        draw = self.rng.random()
        if draw < 0.1 and known.name in self._short_names:
            return self._short_names[known.name]
        if draw < 0.17:
            return f"`{known.name}`"
        if draw < 0.22 and known.kind not in ("module", "exception"):
            return f"{known.name}()"
        return known.name

    def _pick(self, items: Any) -> Any:
        return items[self.rng.randrange(len(items))]

    def _weighted(self, weights: dict[Any, float]) -> Any:
        return self.rng.choices(list(weights), list(weights.values()))[0]


def phrase(phrasing: str, name: str, kind: str, rng: random.Random) -> str:
    noun = rng.choice((name, name, f"the {kind} {name}", f"the {name} {kind}"))
    return phrasing.format(name=name, noun=noun)


def unambiguous_short_names(objects: list[DocumentedObject]) -> dict[str, str]:
    """Maps full names to names without module, if only one listed object has that name."""
    leaves = {known.name: known.name.rpartition(".")[2] for known in objects}
    counts = Counter(leaves.values())
    return {
        name: leaf
        for name, leaf in leaves.items()
        if counts[leaf] == 1 and leaf != name and is_telling(leaf)
    }


def is_telling(leaf: str) -> bool:
    """Whether a name without its module cannot be mistaken for an English word."""
    return len(leaf) >= 10 or "_" in leaf or leaf[1:] != leaf[1:].lower()
