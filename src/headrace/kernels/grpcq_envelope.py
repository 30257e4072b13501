"""What the kernels and the rest of grpcq both call by name: reasons to refuse an envelope, headers, sizes."""

import struct
from enum import IntEnum


class Reason(IntEnum):
    """What is wrong with an envelope."""

    FINE = 0
    NOT_PROTOBUF = 1
    NOT_UTF8 = 2
    TOPIC_EMPTY = 3
    TOPIC_NOT_TRIMMED = 4
    ACTION_EMPTY = 5
    ACTION_NOT_TRIMMED = 6
    PAYLOAD_TOO_LARGE = 7
    KEY_TOO_LONG = 8
    TOO_MANY = 9
    TOPIC_CHARACTER = 10
    ACTION_CHARACTER = 11


NAME_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
"""What the document lets names of queues and topics be made of; actions are names of methods and need no more."""


TOPIC_HEADER = b"grpcq-topic"
ACTION_HEADER = b"grpcq-action"
ORIGINATOR_HEADER = b"grpcq-originator"

UUID_SIZE = 36

RECEIPT = struct.Struct(">IIQ")
"""Subscription, attempt, delivery id: what a delivery is settled with."""
