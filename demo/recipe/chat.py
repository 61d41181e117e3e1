"""The chat format: special tokens, the template that ships, and conversations as token ids."""

from dataclasses import dataclass

from tokenizers import Tokenizer

BEGIN, END, SYSTEM, USER, ASSISTANT, PAD = SPECIAL_TOKENS = (
    "<|begin|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|pad|>",
)

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- set role = 'system' if message.role == 'developer' else message.role %}
{%- if role not in ('system', 'user', 'assistant') %}
{{- raise_exception('Roles are system, user and assistant, not ' + role) }}
{%- endif %}
{{- '<|' + role + '|>' + (message.content or '') | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{%- endif %}"""


@dataclass(frozen=True)
class Turn:
    question: str
    answer: str


@dataclass(frozen=True)
class Conversation:
    turns: tuple[Turn, ...]
    system: str | None = None


@dataclass(frozen=True)
class TokenizedDocument:
    """Token ids, and for each whether the model is trained to predict it."""

    token_ids: list[int]
    is_target: list[bool]


def special_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of SPECIAL_TOKENS.

    Raises:
        ValueError: the tokenizer is not one of the demo models'.
    """
    found = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    token_ids = {token: token_id for token, token_id in found.items() if token_id is not None}
    if len(token_ids) < len(SPECIAL_TOKENS):
        raise ValueError(f"the tokenizer lacks {set(SPECIAL_TOKENS) - set(token_ids)}")
    return token_ids


class ChatEncoder:
    """Encodes what CHAT_TEMPLATE renders; text that spells a special token stays plain text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special = special_token_ids(tokenizer)

    def plain(self, text: str) -> list[int]:
        """Token ids of text that a user wrote."""
        self.tokenizer.encode_special_tokens = True
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, question: str, system: str | None = None) -> list[int]:
        """A first question, up to where the assistant's answer begins."""
        token_ids = [self.special[BEGIN]]
        if system is not None:
            token_ids += self._message(SYSTEM, system)
        return [*token_ids, *self._message(USER, question), self.special[ASSISTANT]]

    def conversation(self, conversation: Conversation) -> TokenizedDocument:
        """A whole conversation; the answers and the tokens that end them are the targets."""
        first = conversation.turns[0]
        token_ids = self.prompt(first.question, conversation.system)
        is_target = [False] * len(token_ids)
        for index, turn in enumerate(conversation.turns):
            if index > 0:
                question = [*self._message(USER, turn.question), self.special[ASSISTANT]]
                token_ids += question
                is_target += [False] * len(question)
            answer = [*self.plain(turn.answer), self.special[END]]
            token_ids += answer
            is_target += [True] * len(answer)
        return TokenizedDocument(token_ids, is_target)

    def _message(self, role: str, text: str) -> list[int]:
        return [self.special[role], *self.plain(text.strip()), self.special[END]]
