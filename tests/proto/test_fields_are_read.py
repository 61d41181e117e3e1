"""Each field of a message, of a dataclass and each command-line flag has a reader."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from taco_proto import inference_pb2, registry_pb2, scheduler_pb2

ROOT = Path(__file__).parents[2]
PACKAGES = ("proto", "common", "kernels", "worker", "draft_cpu", "scheduler", "gateway", "license")
SOURCES = tuple(
    path
    for package in (*PACKAGES, "taco_llm")
    for path in (ROOT / package).rglob("*.py")
    if "_pb2" not in path.name and "build" not in path.relative_to(ROOT).parts
)

# Fields that no product code reads, and why they are there.
ALLOWED = {
    "AddedToken.normalized": "`entry` writes every field to tokenizer.json",
    "AddedToken.single_word": "`entry` writes every field to tokenizer.json",
    "BeamSearchSequence.cum_logprob": "a public result",
    "Build.library": "a public result",
    "GuidedDecodingParams.disable_fallback": "accepted as in vLLM: there is one engine",
    "LinkCounts.num_batches": "tests count how often Redis is asked",
    "LoRARequest.lora_int_id": "accepted as in vLLM: adapters have names alone",
    "Logprob.decoded_token": "a public result",
    "ProcessorContext.model_directory": "read by an operator's logits processors",
    "SamplingParams.guided_decoding": "becomes `structured_outputs`",
    "StructuredOutputsParams.disable_fallback": "accepted as in vLLM: there is one engine",
}


def is_conversion(path: Path) -> bool:
    """It copies fields between a message and a dataclass, which is no use of them."""
    return path.parent.name == "taco_proto" and path.name.startswith("convert")


def attributes_read(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()):
                yield name
            case ast.MatchClass(kwd_attrs=names):
                yield from names


def dataclass_fields(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and "dataclass" in map(_name, node.decorator_list):
            for line in node.body:
                match line:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                        if "ClassVar" not in ast.unparse(annotation):
                            yield node.name, name


def _name(decorator: ast.expr) -> str:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(function).rpartition(".")[2]


def message_fields() -> Iterator[tuple[Descriptor, FieldDescriptor]]:
    for module in (scheduler_pb2, registry_pb2, inference_pb2):
        for message in module.DESCRIPTOR.message_types_by_name.values():
            for field in message.fields:
                yield message, field


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in SOURCES}


def test_every_field_of_a_dataclass_is_read(trees: dict[Path, ast.Module]) -> None:
    """A flag of the command line is a field too."""
    used = {
        name
        for path, tree in trees.items()
        if not is_conversion(path)
        for name in attributes_read(tree)
    }
    fields = [field for tree in trees.values() for field in dataclass_fields(tree)]
    assert {"GenerateRequest", "SchedulerConfig", "SchedulerArgs"} <= {name for name, _ in fields}
    unread = {f"{name}.{field}" for name, field in fields if field not in used}
    assert unread == set(ALLOWED)


def test_every_field_of_a_message_is_read(trees: dict[Path, ast.Module]) -> None:
    """Conversions read most of them into a dataclass, for which the test above answers. A case of
    a oneof may be told by its name alone.
    """
    read = {name for tree in trees.values() for name in attributes_read(tree)}
    cases = frozenset(
        node.value
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    unread = {
        f"{message.name}.{field.name}"
        for message, field in message_fields()
        if field.name not in read and not (field.containing_oneof and field.name in cases)
    }
    assert not unread


def test_a_field_that_is_only_set_is_not_read() -> None:
    source = """
@dataclass(frozen=True)
class Row:
    count: int = 0
    limit: ClassVar[int] = 9

row = Row(count=3)
row.count = 4
"""
    tree = ast.parse(source)
    assert list(dataclass_fields(tree)) == [("Row", "count")]
    assert "count" not in set(attributes_read(tree))
    assert "count" in set(attributes_read(ast.parse("x = row.count")))
