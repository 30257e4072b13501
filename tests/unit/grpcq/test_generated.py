"""What is generated and checked in is what the .proto files say."""

import importlib.util
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from headrace.protocols.grpcq.grpcq_pb2 import Message
from headrace.protocols.grpcq.queues_pb2 import DESCRIPTOR
from headrace.server.grpc_listener import SERVICE

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
assert spec is not None
assert spec.loader is not None
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)
GENERATED: dict[Path, bytes] = generate.generated()

PRINTED = (
    ("originator", 1, FieldDescriptor.TYPE_STRING),
    ("topic", 2, FieldDescriptor.TYPE_STRING),
    ("action", 3, FieldDescriptor.TYPE_STRING),
    ("payload", 4, FieldDescriptor.TYPE_BYTES),
    ("message_id", 5, FieldDescriptor.TYPE_STRING),
    ("timestamp_ms", 6, FieldDescriptor.TYPE_INT64),
    ("metadata", 7, FieldDescriptor.TYPE_MESSAGE),
)


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generating_again_changes_nothing(path: Path) -> None:
    assert path.read_bytes() == GENERATED[path], "run proto/generate.py"


def test_every_generated_module_is_checked() -> None:
    kept = {path for folder in ("src", "examples") for path in (ROOT / folder).rglob("*_pb2*.py*")}
    assert {path for path in kept if path.suffix in (".py", ".pyi")} <= set(GENERATED)


def test_the_message_is_the_one_printed_in_the_document() -> None:
    assert Message.DESCRIPTOR.full_name == "grpcq.Message"
    assert tuple((field.name, field.number, field.type) for field in Message.DESCRIPTOR.fields) == PRINTED
    entry = Message.DESCRIPTOR.fields_by_name["metadata"].message_type
    assert entry is not None
    assert entry.GetOptions().map_entry
    assert {field.type for field in entry.fields} == {FieldDescriptor.TYPE_STRING}


def test_the_service_has_the_calls_the_listener_serves() -> None:
    (service,) = DESCRIPTOR.services_by_name.values()
    assert service.full_name == SERVICE
    assert [method.name for method in service.methods] == ["Publish", "Consume", "Ack", "Nack", "Stream"]


def test_everything_in_the_service_is_documented() -> None:
    text = (ROOT / "proto" / "headrace" / "grpcq" / "v1" / "queues.proto").read_text()
    for line in re.findall(r"^  rpc .*$", text, re.MULTILINE):
        above = text[: text.index(line)].rstrip().splitlines()[-1]
        assert above.lstrip().startswith("//"), line
