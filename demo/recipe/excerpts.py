"""Questions that carry a documentation excerpt and are answered from it.

The answer to such a question is the excerpt's first sentence, so that a model can only be right by
copying: names are invented, sentences are drawn from all of the library's documentation, and some
are words in random order. Names and sentences of the test are not met in training.
"""

import random
import re
from dataclasses import dataclass
from functools import cache

from recipe.objects import SENTENCE_CHARACTERS, all_candidates

HELD_OUT_SHARE = 0.1
KINDS = ("function", "method", "class")
SHARE_SHUFFLED = 0.4
SENTENCE = re.compile(r"(?:^|(?<=[.] ))[A-Z][^.>|\\]+[a-z)'][.](?= |$)")


@dataclass(frozen=True)
class Excerpt:
    kind: str
    name: str
    text: str
    sentence: str


@dataclass(frozen=True)
class ExcerptMaterial:
    """Words for names and sentences for documentation, disjoint between training and test."""

    words: list[str]
    sentences: list[str]

    def draw(self, rng: random.Random) -> Excerpt:
        kind = rng.choice(KINDS)
        name = self._name(rng, kind)
        sentences = [self._sentence(rng) for _ in range(rng.randint(1, 2))]
        arguments = ", ".join(rng.sample(self.words, rng.randint(0, 2)))
        signature = f"{kind} {name}" + ("" if kind == "class" else f"({arguments})")
        text = "\n".join([signature, *(f"    {sentence}" for sentence in sentences)])
        return Excerpt(kind, name, text, sentences[0])

    def random_words(self, rng: random.Random) -> str:
        words = " ".join(rng.sample(self.sentences, 3)).split()
        return " ".join(rng.sample(words, min(len(words), rng.randint(3, 12))))

    def _name(self, rng: random.Random, kind: str) -> str:
        parts = ["_".join(rng.sample(self.words, rng.choice((1, 1, 2)))) for _ in range(3)]
        if kind == "class":
            return f"{parts[0]}.{parts[1].title().replace('_', '')}"
        if kind == "method":
            return f"{parts[0]}.{parts[1].title().replace('_', '')}.{parts[2]}"
        return f"{parts[0]}.{parts[2]}"

    def _sentence(self, rng: random.Random) -> str:
        sentence = rng.choice(self.sentences)
        if rng.random() >= SHARE_SHUFFLED:
            return sentence
        words = sentence.rstrip(".").split() + rng.choice(self.sentences).split()[:3]
        return " ".join(rng.sample(words, min(len(words), 12))).rstrip(".") + "."


@cache
def excerpt_material() -> tuple[ExcerptMaterial, ExcerptMaterial]:
    """Material for training and for the test, from the running Python's documentation."""
    sentences, words = set(), set()
    for candidate in all_candidates():
        sentences.update(_short_sentences(candidate.documentation))
        words.update(re.findall(r"[a-z]{3,10}", candidate.documented.name.lower()))
    # The same split on every machine: by a seed, over sorted material.
    rng = random.Random(0)
    train_sentences, test_sentences = _split(sorted(sentences), rng)
    train_words, test_words = _split(sorted(words), rng)
    return (
        ExcerptMaterial(train_words, train_sentences),
        ExcerptMaterial(test_words, test_sentences),
    )


def _short_sentences(documentation: str) -> list[str]:
    paragraphs = (re.sub(r"\s+", " ", text).strip() for text in documentation.split("\n\n"))
    return [
        sentence
        for paragraph in paragraphs
        for sentence in SENTENCE.findall(paragraph)
        if len(sentence) in SENTENCE_CHARACTERS and sentence.isascii()
    ]


def _split(items: list[str], rng: random.Random) -> tuple[list[str], list[str]]:
    rng.shuffle(items)
    held_out = round(len(items) * HELD_OUT_SHARE)
    return items[held_out:], items[:held_out]
