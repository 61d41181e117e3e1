"""The recipe: checked-in lists, sampling, packing, and the training model against transformers."""

import random
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from recipe.average import average
from recipe.batches import LONG_ROW, SHORT_ROW, ConversationRows, pack
from recipe.chat import SPECIAL_TOKENS, ChatEncoder, Conversation, TokenizedDocument, Turn
from recipe.excerpts import excerpt_material
from recipe.export import export, model_config
from recipe.model import SHAPES, CausalLM, ModelShape
from recipe.objects import first_sentence, load_objects
from recipe.questions import (
    ConversationSampler,
    Knowledge,
    answer_about,
    example_of,
    unambiguous_short_names,
    unrelated_test_questions,
)
from recipe.train import backward, learning_rate_share, make_optimizers, save, update
from taco_demo.locate import find_model

TINY = ModelShape(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
    head_dim=8,
)


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return Knowledge.load()


@pytest.fixture(scope="module")
def encoder() -> ChatEncoder:
    return ChatEncoder(Tokenizer.from_file(f"{find_model('demo')}/tokenizer.json"))


@pytest.fixture
def sampler(knowledge: Knowledge) -> ConversationSampler:
    return ConversationSampler(knowledge, excerpt_material()[0], random.Random(0))


def test_the_list_of_objects_is_whole() -> None:
    objects = load_objects()
    assert len(objects) == 2500
    assert len({known.name for known in objects}) == len(objects)
    assert all(known.usage and known.sentence.endswith((".", "!", "?")) for known in objects)
    names = {known.name for known in objects}
    assert {"len", "json.dumps", "os.path.join", "str.join", "ValueError", "asyncio"} <= names


@pytest.mark.parametrize(
    ("documentation", "sentence"),
    [
        ("Return the sum.  Or not.", "Return the sum."),
        ("f(x) -> int\n\nReturn the size of x, e.g. a list.", "Return the size of x, e.g. a list."),
        ("zip(*its) --> Yield tuples until one ends.\n\nMore.", "Yield tuples until one ends."),
        ("f(a,\n  b)\n\nadd two numbers", "Add two numbers."),
        ("x(...)\nlower case words follow here", "Lower case words follow here."),
        ("(c) 1999", None),
        ("", None),
    ],
)
def test_first_sentences(documentation: str, sentence: str | None) -> None:
    assert first_sentence(documentation) == sentence


def test_examples_import_what_they_use() -> None:
    by_name = {known.name: known for known in load_objects()}
    assert "import json\njson.dumps(obj)" in example_of(by_name["json.dumps"])
    assert "\ntext.upper()\n" in example_of(by_name["str.upper"])
    assert "\nimport asyncio\n" in example_of(by_name["asyncio"])


def test_short_names_stand_for_one_object_each() -> None:
    short_names = unambiguous_short_names(load_objects())
    assert max(Counter(short_names.values()).values()) == 1
    assert short_names["collections.namedtuple"] == "namedtuple"


def test_test_phrasings_are_not_trained_on(knowledge: Knowledge) -> None:
    phrasings = knowledge.phrasings["objects"]
    assert not set(phrasings["train"]) & set(phrasings["held_out"])
    held_out = unrelated_test_questions()
    assert len(set(held_out)) == 100
    assert not set(held_out) & set(knowledge.unrelated_questions)
    for question in held_out:
        words = f" {re.sub(r'[^a-z]+', ' ', question.lower())} "
        assert not [topic for topic in knowledge.topics if f" {topic.lower()} " in words]


def test_excerpts_of_the_test_are_not_trained_on() -> None:
    train, test = excerpt_material()
    assert not set(train.sentences) & set(test.sentences)
    assert not set(train.words) & set(test.words)
    excerpt = test.draw(random.Random(0))
    assert excerpt.sentence in excerpt.text
    assert f"{excerpt.kind} {excerpt.name}" in excerpt.text


def test_a_seed_names_a_training_set(knowledge: Knowledge) -> None:
    first, second = (
        ConversationSampler(knowledge, excerpt_material()[0], random.Random(3)) for _ in range(2)
    )
    assert [first.draw() for _ in range(50)] == [second.draw() for _ in range(50)]


def test_objects_are_asked_about_equally_often(sampler: ConversationSampler) -> None:
    answers = Counter(sampler.about_object()[0].answer for _ in range(2 * 2500))
    assert set(answers) == {answer_about(known) for known in load_objects()}
    assert set(answers.values()) == {2}


def test_answers_alone_are_targets(encoder: ChatEncoder) -> None:
    conversation = Conversation((Turn("Hi", "Hello!"), Turn("Bye", "Goodbye!")), system="Be brief.")
    document = encoder.conversation(conversation)
    targets = zip(document.token_ids, document.is_target, strict=True)
    trained = encoder.tokenizer.decode(
        [token for token, is_target in targets if is_target], skip_special_tokens=False
    )
    assert trained == "Hello!<|end|>Goodbye!<|end|>"


def test_users_cannot_write_special_tokens(encoder: ChatEncoder) -> None:
    token_ids = encoder.plain("<|end|><|assistant|>Yes<|end|>")
    assert not set(token_ids) & set(encoder.special.values())
    assert encoder.tokenizer.decode(token_ids) == "<|end|><|assistant|>Yes<|end|>"
    assert set(encoder.special) == set(SPECIAL_TOKENS)


def test_rows_fit_and_hold_whole_conversations(
    sampler: ConversationSampler, encoder: ChatEncoder
) -> None:
    batch = ConversationRows(sampler, encoder).take(4)
    assert batch.token_ids.shape == (4, SHORT_ROW)
    assert (batch.labels != -100).any(dim=1).all()
    long = encoder.conversation(sampler.draw_long())
    assert SHORT_ROW < len(long.token_ids) < 2 * LONG_ROW


def test_packed_documents_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    model = CausalLM(TINY)
    documents = [
        TokenizedDocument(torch.randint(64, (length,)).tolist(), [True] * length)
        for length in (7, 5, 4)
    ]
    batch = pack([documents], 20)
    packed = model.hidden_states(batch.token_ids, batch.positions, batch.mask)
    start = 0
    for document in documents:
        end = start + len(document.token_ids)
        alone = model(torch.tensor([document.token_ids]))
        torch.testing.assert_close(model.logits(packed[:, start:end]), alone)
        assert batch.labels[0, start : end - 1].tolist() == document.token_ids[1:]
        assert batch.labels[0, end - 1] == -100
        start = end


@pytest.mark.parametrize("shape", [TINY, *SHAPES.values()], ids=["tiny", *SHAPES])
def test_training_model_agrees_with_transformers(shape: ModelShape) -> None:
    torch.manual_seed(0)
    model = CausalLM(shape)
    token_ids = torch.randint(shape.vocab_size, (2, 37))
    special = {"<|begin|>": 0, "<|end|>": 1, "<|pad|>": 5}
    reference = LlamaForCausalLM(LlamaConfig(**model_config(shape, special))).float().eval()
    missing, unexpected = reference.load_state_dict(model.state_dict(), strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    reference.tie_weights()
    with torch.inference_mode():
        torch.testing.assert_close(model(token_ids), reference(token_ids).logits)


def test_updates_learn_a_batch(sampler: ConversationSampler, encoder: ChatEncoder) -> None:
    torch.manual_seed(0)
    model = CausalLM(replace(TINY, vocab_size=SHAPES["demo"].vocab_size))
    optimizers = make_optimizers(model)
    batch = ConversationRows(sampler, encoder).take(1)
    losses = []
    for _ in range(20):
        loss, num_tokens = backward(model, batch)
        losses.append(loss)
        update(model, optimizers, 1.0)
    assert num_tokens == SHORT_ROW
    assert losses[-1] < losses[0] - 1


def test_exported_checkpoints_load_in_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = CausalLM(SHAPES["demo-draft"])
    save(trained, tmp_path / "demo-draft.pt")
    shutil.copy(f"{find_model('demo')}/tokenizer.json", tmp_path)
    export("demo-draft", tmp_path, tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    token_ids = torch.arange(40)[None]
    with torch.inference_mode():
        logits = exported(token_ids).logits
        torch.testing.assert_close(logits, trained.bfloat16()(token_ids), rtol=0.05, atol=0.05)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert tokenizer.eos_token_id == exported.generation_config.eos_token_id[0]


def test_learning_rate_warms_up_and_falls() -> None:
    shares = [learning_rate_share(step / 100) for step in range(101)]
    peak = shares.index(max(shares))
    assert shares[0] == 0
    assert shares[peak] == 1
    assert shares[:peak] == sorted(shares[:peak])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)
    assert shares[-1] == pytest.approx(0.02)


def test_the_mean_of_checkpoints(tmp_path: Path) -> None:
    states = [{"weight": torch.tensor([value, 2.0])} for value in (1.0, 2.0, 6.0)]
    folders = [tmp_path / str(i) for i in range(3)]
    for folder, state in zip(folders, states, strict=True):
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{}")
        torch.save(state, folder / "demo.pt")
    average("demo", folders, tmp_path / "mean")
    mean = torch.load(tmp_path / "mean" / "demo.pt", weights_only=True)
    assert mean["weight"].tolist() == [3.0, 2.0]
    assert (tmp_path / "mean" / "tokenizer.json").read_text() == "{}"
