"""What a message says: out of its envelope where it is in one."""

import base64
from typing import Any

from headrace.cli.content import content, headers
from headrace.protocols.grpcq.grpcq_pb2 import Message

ENVELOPE = Message(topic="shop.Orders", action="Placed", payload=b"\xffone").SerializeToString()


def message(value: bytes, protocol: str, **given: str) -> dict[str, Any]:
    told = [
        {"name": name, "value": base64.b64encode(text.encode()).decode(), "text": text} for name, text in given.items()
    ]
    return {"protocol": protocol, "value": base64.b64encode(value).decode(), "text": None, "headers": told}


def test_a_grpcq_message_is_shown_without_its_envelope() -> None:
    assert content(message(ENVELOPE, "grpcq")) == b"\xffone"


def test_an_envelope_that_came_by_another_door_is_known_by_its_header() -> None:
    found = message(ENVELOPE, "fujin")
    assert content(found) == ENVELOPE
    found["headers"] = [{"name": "content-type", "value": "", "text": "application/grpcq"}]
    assert content(found) == b"\xffone"


def test_an_envelope_that_is_cut_short_is_shown_as_it_is() -> None:
    assert content(message(ENVELOPE[:-3], "grpcq")) == ENVELOPE[:-3]


def test_headers_that_are_no_text_are_hexadecimal() -> None:
    found = message(b"", "fujin", customer="c7")
    found["headers"].append({"name": "raw", "value": "/wA=", "text": None})
    assert headers(found) == ["customer=c7", "raw=0xff00"]
