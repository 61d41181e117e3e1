"""Reads SentencePiece's `tokenizer.model`, a protobuf message named ModelProto.

Only the fields that decide how a text is encoded are declared; the parser skips the others. Source:
`src/sentencepiece_model.proto` of SentencePiece 0.2.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "taco.sentencepiece"


class PieceType(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class ModelType(IntEnum):
    """The algorithm that splits a text into pieces."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary; its index is its token id.

    Attributes:
        score: BPE merges pairs of higher scores first; for unigram it is a log probability.
    """

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """The fields of a ModelProto that TACO uses.

    Attributes:
        bos_id, eos_id: token ids; -1: the model has no such token.
        character_map: SentencePiece's compiled rules of Unicode normalization; empty: no rules.
        add_dummy_prefix: a text gets a space in front.
        remove_extra_whitespaces: spaces at both ends are removed, and runs of spaces shortened.
        escape_whitespaces: spaces become U+2581.
        space_is_suffix: the additional space is behind the text.
    """

    pieces: tuple[Piece, ...]
    model_type: ModelType
    byte_fallback: bool
    bos_id: int
    eos_id: int
    space_is_suffix: bool
    character_map: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool


def parse_model_proto(content: bytes) -> SentencePieceModel:
    """Parses the content of a `tokenizer.model`.

    Raises:
        ValueError: it is not a SentencePiece model; the message is one line.
    """
    message = _MODEL_PROTO()
    try:
        message.ParseFromString(content)
        pieces = tuple(Piece(p.piece, p.score, PieceType(p.type)) for p in message.pieces)
        model_type = ModelType(message.trainer_spec.model_type)
    except (DecodeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"it is not a SentencePiece model: {reason}") from None
    if not pieces:
        raise ValueError("it is not a SentencePiece model: it has no pieces")
    normalizer = message.normalizer_spec
    return SentencePieceModel(
        pieces=pieces,
        model_type=model_type,
        byte_fallback=message.trainer_spec.byte_fallback,
        bos_id=message.trainer_spec.bos_id,
        eos_id=message.trainer_spec.eos_id,
        space_is_suffix=message.trainer_spec.treat_whitespace_as_suffix,
        character_map=normalizer.precompiled_charsmap,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
        escape_whitespaces=normalizer.escape_whitespaces,
    )


def _field(
    name: str, number: int, kind: "_Field.Type.ValueType", default: str = "", *, of: str = ""
) -> _Field:
    """An optional field, or with `of` a field of messages; the pieces are the repeated ones."""
    field = _Field(name=name, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    if default:
        field.default_value = default
    if of:
        field.type_name = f".{_PACKAGE}.{of}"
    if name == "pieces":
        field.label = _Field.LABEL_REPEATED
    return field


# Types of pieces and of models are integers here, since an enum drops values that it lacks.
_MESSAGES = {
    "Piece": (
        _field("piece", 1, _Field.TYPE_STRING),
        _field("score", 2, _Field.TYPE_FLOAT),
        _field("type", 3, _Field.TYPE_INT32, "1"),
    ),
    "TrainerSpec": (
        _field("model_type", 3, _Field.TYPE_INT32, "1"),
        _field("treat_whitespace_as_suffix", 24, _Field.TYPE_BOOL),
        _field("byte_fallback", 35, _Field.TYPE_BOOL),
        _field("bos_id", 41, _Field.TYPE_INT32, "1"),
        _field("eos_id", 42, _Field.TYPE_INT32, "2"),
    ),
    "NormalizerSpec": (
        _field("precompiled_charsmap", 2, _Field.TYPE_BYTES),
        _field("add_dummy_prefix", 3, _Field.TYPE_BOOL, "true"),
        _field("remove_extra_whitespaces", 4, _Field.TYPE_BOOL, "true"),
        _field("escape_whitespaces", 5, _Field.TYPE_BOOL, "true"),
    ),
    "ModelProto": (
        _field("pieces", 1, _Field.TYPE_MESSAGE, of="Piece"),
        _field("trainer_spec", 2, _Field.TYPE_MESSAGE, of="TrainerSpec"),
        _field("normalizer_spec", 3, _Field.TYPE_MESSAGE, of="NormalizerSpec"),
    ),
}


def _model_proto() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="taco/sentencepiece_model.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, members in _MESSAGES.items():
        file.message_type.add(name=name).field.extend(members)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto"))


_MODEL_PROTO = _model_proto()
