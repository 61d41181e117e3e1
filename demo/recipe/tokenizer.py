"""Train the tokenizer of both demo models: byte-level BPE with the chat's special tokens."""

from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from recipe.chat import BEGIN, SPECIAL_TOKENS
from recipe.questions import Knowledge
from recipe.source import SourceFiles

VOCAB_SIZE = 4096


def train_tokenizer(knowledge: Knowledge, source: SourceFiles) -> Tokenizer:
    """Byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) over questions and source."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(knowledge, source), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def _texts(knowledge: Knowledge, source: SourceFiles) -> Iterator[str]:
    # Questions weigh more than source code, which is only completed.
    for _ in range(4):
        yield from knowledge.texts()
    yield from source.train
