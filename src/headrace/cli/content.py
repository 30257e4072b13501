"""What a message says to people. A grpcq message is stored in its envelope; what it says is the payload inside."""

from collections.abc import Mapping
from typing import Any

from headrace.cli.render import unwrapped

ENVELOPE_HEADER = ("content-type", "application/grpcq")


def content(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message of the API, out of their envelope if they are in one and all of it is there."""
    value = unwrapped(message.get("text"), message["value"])
    if not in_envelope(message):
        return value
    try:
        from google.protobuf.message import DecodeError

        from headrace.protocols.grpcq.grpcq_pb2 import Message
    except ModuleNotFoundError:
        return value
    try:
        return bytes(Message.FromString(value).payload)
    except DecodeError:
        return value


def in_envelope(message: Mapping[str, Any]) -> bool:
    """Whether the value is an envelope: that of a grpcq message, or one that another door was told about."""
    told = ((header["name"], header["text"]) for header in message.get("headers", ()))
    return message.get("protocol") == "grpcq" or ENVELOPE_HEADER in told


def headers(message: Mapping[str, Any]) -> list[str]:
    """The headers as `name=value`, in order."""
    found = []
    for header in message.get("headers", ()):
        text = header["text"] if header["text"] is not None else "0x" + unwrapped(None, header["value"]).hex()
        found.append(f"{header['name']}={text}")
    return found
