"""Flight's messages as bytes: what protobuf itself reads and writes, and what strangers may send."""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import flight

from headrace.feed.wire import (
    Action,
    BadMessage,
    Descriptor,
    FlightData,
    action_type,
    field,
    fields,
    flight_data,
    flight_info,
    path_descriptor,
    ticket_of,
)
from headrace.model.errors import HeadraceError

_FIELDS = {
    "Descriptor": [("type", 1, "INT32"), ("cmd", 2, "BYTES"), ("path", 3, "STRING*")],
    "FlightData": [
        ("descriptor", 1, "Descriptor"), ("header", 2, "BYTES"), ("metadata", 3, "BYTES"), ("body", 1000, "BYTES"),
    ],
    "Action": [("type", 1, "STRING"), ("body", 2, "BYTES")],
    "Ticket": [("ticket", 1, "BYTES")],
}  # fmt: skip


def originals() -> dict[str, Any]:
    """The same messages by protobuf."""
    file = descriptor_pb2.FileDescriptorProto(name="flight_test.proto", package="t", syntax="proto3")
    kinds: Any = descriptor_pb2.FieldDescriptorProto
    for name, listed in _FIELDS.items():
        message = file.message_type.add(name=name)
        for each, number, kind in listed:
            made = message.field.add(name=each, number=number, label=3 if kind.endswith("*") else 1)
            if kind in _FIELDS:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".t.{kind}"
            else:
                made.type = getattr(kinds, f"TYPE_{kind.rstrip('*')}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in _FIELDS}


ORIGINAL = originals()


@given(kind=st.integers(0, 9), command=st.binary(), path=st.lists(st.text()), header=st.binary(), body=st.binary())
def test_rows_are_read_as_protobuf_writes_them(
    kind: int, command: bytes, path: list[str], header: bytes, body: bytes
) -> None:
    descriptor = ORIGINAL["Descriptor"](type=kind, cmd=command, path=path)
    sent = ORIGINAL["FlightData"](descriptor=descriptor, header=header, body=body, metadata=b"m").SerializeToString()
    found = FlightData.decode(sent)
    assert found.descriptor == Descriptor(kind, command, tuple(path), descriptor.SerializeToString())
    assert (bytes(found.header), bytes(found.body)) == (header, body)


@given(header=st.binary(), metadata=st.binary(), body=st.lists(st.binary(min_size=1)))
def test_protobuf_reads_the_rows_we_write(header: bytes, metadata: bytes, body: list[bytes]) -> None:
    found = ORIGINAL["FlightData"].FromString(b"".join(flight_data(header, metadata, body)))
    assert (found.header, found.metadata, found.body) == (header, metadata, b"".join(body))


@given(kind=st.text(), body=st.binary())
def test_questions_and_tickets_are_read_as_protobuf_writes_them(kind: str, body: bytes) -> None:
    assert Action.decode(ORIGINAL["Action"](type=kind, body=body).SerializeToString()) == Action(kind, body)
    assert ticket_of(ORIGINAL["Ticket"](ticket=body).SerializeToString()) == body


def test_arrow_reads_the_flights_we_write() -> None:
    descriptor = path_descriptor("orders")
    info = flight.FlightInfo.deserialize(flight_info(b"", descriptor, [b"one", b"two"]))
    assert [each.ticket.ticket for each in info.endpoints] == [b"one", b"two"]
    assert (info.total_records, info.total_bytes) == (-1, -1)
    assert info.descriptor.path == [b"orders"]
    assert Descriptor.decode(descriptor).path == ("orders",)
    assert list(fields(action_type("a", "b"))) == [(1, memoryview(b"a")), (2, memoryview(b"b"))]
    assert field(1, b"x" * 300)[:3] == b"\n\xac\x02"


@given(data=st.binary(max_size=200))
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\xff" * 30)
@example(b"\x0b\x0c")
@example(b"\xc2\x3e\x05abc")
@example(b"\x00\x00")
def test_whatever_is_sent_is_a_message_or_none(data: bytes) -> None:
    for read in (FlightData.decode, Descriptor.decode, Action.decode, ticket_of):
        try:
            read(data)
        except HeadraceError as error:
            assert isinstance(error, BadMessage)  # noqa: PT017 - either is right


def test_a_field_of_another_kind_is_told_of() -> None:
    with pytest.raises(BadMessage, match="a number where bytes"):
        FlightData.decode(b"\x10\x01")
    with pytest.raises(BadMessage, match="bytes where a number"):
        Descriptor.decode(b"\x0a\x01x")
    with pytest.raises(BadMessage, match="UTF-8"):
        Action.decode(b"\x0a\x01\xff")
    with pytest.raises(BadMessage, match="3 bytes, and 1 are there"):
        ticket_of(b"\x0a\x03x")
    assert ticket_of(b"\x0d1234\x11123456780\x07" + b"\x0a\x01x") == b"x"
