"""Random answers that follow a grammar, without a model."""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

import numpy as np
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from support.checkpoint_tokenizer import END_OF_TURN_TOKEN, EOS_TOKEN, trained_tokenizer
from taco_gateway.text.grammar.answer_grammar import answer_grammar
from taco_gateway.text.grammar.answer_rules import AnswerRules, ids_without_text
from taco_gateway.text.grammar.grammar_process import grammar_text
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer

_MAX_TOKENS = 20_000


@dataclass(frozen=True)
class Vocabulary:
    """A small byte-level vocabulary with marker tokens."""

    tokenizer: FastTokenizer
    tokens: LLTokenizer
    end_ids: frozenset[int]

    @classmethod
    def of(cls, markers: Iterable[str], special: Collection[str] = ()) -> "Vocabulary":
        """Args:
        special: those of the markers that are special tokens.
        """
        backend: tokenizers.Tokenizer = trained_tokenizer()
        for text in dict.fromkeys(markers):
            added = tokenizers.AddedToken(text, special=text in special, normalized=False)
            (backend.add_special_tokens if text in special else backend.add_tokens)([added])
        tokenizer = FastTokenizer(backend)
        ends = [tokenizer.added_tokens[text] for text in (EOS_TOKEN, END_OF_TURN_TOKEN)]
        tokens = LLTokenizer(backend.to_str(), eos_token=ends)
        return cls(tokenizer, tokens, frozenset(ends))

    def rules(self, markers: Iterable[str], **parts: object) -> AnswerRules:
        """Rules with the markers that are tokens."""
        added = self.tokenizer.added_tokens
        return AnswerRules(
            markers={text: added[text] for text in markers if text in added},
            special_ids=ids_without_text(added, self.tokenizer.special_ids),
            end_ids=self.end_ids,
            vocab_size=self.tokenizer.vocab_size,
            **parts,  # type: ignore[arg-type]
        )

    def matcher(self, rules: AnswerRules, **constraint: object) -> LLMatcher:
        """A matcher of the grammar, which has been made as the gateway makes it."""
        grammar = answer_grammar(rules, has_content=bool(constraint))
        request = {"answer": asdict(grammar), "vocab_size": rules.vocab_size}
        text = grammar_text(json.loads(json.dumps({**request, **constraint})))
        matcher = LLMatcher(self.tokens, text, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def allowed(self, matcher: LLMatcher) -> list[int]:
        """The tokens that may come next."""
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        assert not matcher.is_error(), matcher.get_error()
        found = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        return [token for token in found.tolist() if token < self.tokenizer.vocab_size]

    def walk(
        self, matcher: LLMatcher, random: np.random.Generator, start: Iterable[int] = ()
    ) -> list[int]:
        """A random text of the grammar, from the end of `start` on, which it returns too.

        End tokens come late: only one of several allowed tokens is drawn.
        """
        written = list(start)
        for token in written:
            assert matcher.consume_token(token), matcher.get_error()
        while len(written) < _MAX_TOKENS:
            token = int(random.choice(self.allowed(matcher)))
            if token in self.end_ids:
                return written
            assert matcher.consume_token(token), matcher.get_error()
            written.append(token)
        raise AssertionError(self.tokenizer.decode(written[:300]))
