"""A budget of tokens on random walks: the masks are those of the budget's definition."""

import json
from dataclasses import replace

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from support.checkpoint_tokenizer import EOS_TOKEN_ID, save_tokenizer
from taco_proto.token_budget import TokenBudget, split_budget, with_budget
from taco_worker.grammars.budgeted_matcher import BudgetedMatcher, BudgetRules
from taco_worker.grammars.compiler import GrammarCompiler
from taco_worker.grammars.forced_tokens import allowed_nodes, forced_tokens
from taco_worker.grammars.matcher import Matcher
from taco_worker.grammars.row_masks import Draft, RowMasks
from taco_worker.grammars.vocabulary import load_vocabulary
from taco_worker.sampling.token_masks import mask_of

ENDS = (EOS_TOKEN_ID,)
BEHIND = 'reason[lazy]: /(?s:.*)/ "##b##"\nyes: "yes" | "no"'
GRAMMARS = {
    (): f"start: reason yes\n{BEHIND}",
    (("<t>",),): f'start: "<t>" reason yes | yes\n{BEHIND}',
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return load_vocabulary(folder, save_tokenizer(folder), ENDS)


def text_of(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}]}, separators=(",", ":"))


def budget_of(vocabulary: LLTokenizer, opens: tuple[tuple[str], ...], most: int) -> TokenBudget:
    ends = tuple(vocabulary.tokenize_str("##b##"))
    assert len(ends) > 2
    return TokenBudget(max_tokens=most, opens=opens, closes=(("##b##",),), end_token_ids=ends)


def made(
    vocabulary: LLTokenizer, opens: tuple[tuple[str], ...], most: int
) -> tuple[Matcher, LLMatcher, TokenBudget]:
    """A matcher as the worker makes it, one without the budget, and the budget."""
    budget = budget_of(vocabulary, opens, most)
    text = text_of(GRAMMARS[opens])
    return (
        GrammarCompiler._matcher(vocabulary, with_budget(text, budget)),
        LLMatcher(vocabulary, text, log_level=0),
        budget,
    )


def bits(matcher: Matcher) -> list[int]:
    unpacked = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(unpacked).tolist()
    return found


def forced_by_definition(
    vocabulary: LLTokenizer, budget: TokenBudget, path: list[int]
) -> int | None:
    """The token that must follow, found in the whole text."""
    begin = 0
    if budget.opens:
        written = b""
        while begin < len(path) and written != b"<t>":
            written += vocabulary.decode_bytes([path[begin]])
            begin += 1
        if not written.startswith(b"<t>"):
            return None
    inside = path[begin:]
    if b"##b##" in vocabulary.decode_bytes(path) or len(inside) < budget.max_tokens:
        return None
    ends = budget.end_token_ids
    written_ends = [n for n in range(len(ends)) if n <= len(inside) and (
        tuple(inside[len(inside) - n:]) == ends[:n])]  # fmt: skip
    return ends[max(written_ends)]


@pytest.mark.parametrize("opens", GRAMMARS)
@pytest.mark.parametrize("most", [0, 1, 6])
def test_masks_are_those_of_the_definition(
    vocabulary: LLTokenizer, opens: tuple[tuple[str], ...], most: int
) -> None:
    chance = np.random.default_rng(most)
    ends = list(vocabulary.tokenize_str("##b##"))
    num_forced = 0
    for _ in range(30):
        matcher, free, budget = made(vocabulary, opens, most)
        path: list[int] = []
        if opens and chance.random() < 0.8:
            path = vocabulary.tokenize_str("<t>")
            assert matcher.consume_tokens(path)
            assert free.consume_tokens(path)
        while not free.is_stopped() and len(path) < 40:
            allowed, without = bits(matcher), bits(free)
            forced = forced_by_definition(vocabulary, budget, path)
            if forced is not None and forced in without:
                assert allowed == [forced]
                assert matcher.compute_ff_tokens()[0] == forced
                assert not matcher.is_accepting()
                num_forced += 1
            else:
                assert allowed == without
            others = [token for token in allowed if token not in ENDS]
            assert matcher.validate_tokens([others[0]]) == 1 if others else matcher.is_accepting()
            refused = next(t for t in range(vocabulary.vocab_size) if t not in allowed)
            assert forced is None or matcher.validate_tokens([refused]) == 0
            if not others:
                break
            likely = [token for token in others if token in ends] if chance.random() < 0.5 else []
            token = int(chance.choice(likely or others))
            before = bits(matcher)
            assert matcher.consume_token(token)
            if chance.random() < 0.3:  # a draft that is rolled back leaves no trace
                assert matcher.rollback(1)
                assert bits(matcher) == before
                matcher = matcher.deep_copy()
                assert matcher.consume_token(token)
            assert free.consume_token(token)
            path.append(token)
    assert num_forced > 5


def test_the_marker_is_drafted_and_other_drafts_are_refused(vocabulary: LLTokenizer) -> None:
    matcher, _, budget = made(vocabulary, (), 2)
    ends = list(budget.end_token_ids)
    text = vocabulary.tokenize_str("qz")
    assert len(text) == 2
    assert matcher.consume_tokens(text)
    assert forced_tokens(matcher, 20, ENDS) == ends
    draft = Draft([ends[0], ends[1], ends[1], text[0]], [-1, 0, 1, -1])
    eos_mask = mask_of([*ENDS], vocabulary.vocab_size)
    masks = RowMasks.of(
        matcher, [], draft, eos_mask, num_generated=2, min_tokens=0, ignores_eos=False
    )
    assert not masks.error
    for row, follows in ((0, ends[0]), (1, ends[1]), (2, ends[2])):
        row_bits = np.unpackbits(masks.bits[row].view(np.uint8), bitorder="little")
        assert np.flatnonzero(row_bits).tolist() == [follows]
    assert allowed_nodes(matcher, draft, ENDS) == [True, True, ends[1] == ends[2], False]
    assert matcher.validate_tokens([*ends[:2], text[0]]) == 2
    assert matcher.consume_tokens([*ends, *vocabulary.tokenize_str("yes")])
    assert matcher.is_accepting()


def test_a_marker_that_has_begun_is_completed(vocabulary: LLTokenizer) -> None:
    matcher, _, budget = made(vocabulary, (), 2)
    ends = list(budget.end_token_ids)
    assert matcher.consume_tokens([vocabulary.tokenize_str("q")[0], ends[0]])
    assert forced_tokens(matcher, 20, ENDS) == ends[1:]


def test_a_character_is_completed_before_the_marker(vocabulary: LLTokenizer) -> None:
    matcher, free, budget = made(vocabulary, (), 1)
    half = vocabulary.tokenize_bytes("é".encode())
    assert len(half) == 2
    assert matcher.consume_token(half[0])
    assert free.consume_token(half[0])
    assert bits(matcher) == bits(free)
    assert matcher.consume_token(half[1])
    assert bits(matcher) == [budget.end_token_ids[0]]


def test_special_tokens_are_symbols_of_a_marker(vocabulary: LLTokenizer) -> None:
    budget = TokenBudget(
        max_tokens=9,
        opens=(),
        closes=((0, "ab"),),
        end_token_ids=(0, *vocabulary.tokenize_str("ab")),
    )
    rules = BudgetRules(budget, vocabulary)
    state = rules.start()
    for token in (*vocabulary.tokenize_str("ab"), 0, *vocabulary.tokenize_str("ab")):
        assert rules.forced_token(replace(state, num_tokens=9)) is not None
        state = rules.after(state, token)
    assert rules.forced_token(state) is None


def test_a_budget_travels_with_its_grammar(vocabulary: LLTokenizer) -> None:
    text = text_of(GRAMMARS[()])
    budget = TokenBudget(max_tokens=3, opens=(("a", 7),), closes=(('"é',),), end_token_ids=(1, 2))
    assert split_budget(with_budget(text, budget)) == (text, budget)
    assert split_budget(text) == (text, None)
    for broken in ('{"budget":{}}', '{"budget":1}', '{"budget":'):
        with pytest.raises(ValueError, match=r"budget|Expecting"):
            split_budget(broken)
    assert isinstance(
        GrammarCompiler._matcher(vocabulary, with_budget(text, budget)), BudgetedMatcher
    )
