"""What the codec does beyond its vectors: limits, partial input, over-long texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import BrokerError, PeerProtocolError
from headrace.protocols.blipmq import frames
from headrace.protocols.blipmq.frames import FrameType


def test_a_frame_is_complete_only_with_its_last_byte() -> None:
    data = frames.encode_publish(1, "t", b"value")
    assert [frames.decode_frame(data, 0, end) for end in range(len(data))] == [None] * len(data)
    assert frames.decode_frame(b"xx" + data, 2, 2 + len(data)) == frames.Frame(
        FrameType.PUBLISH, 1, b"\x01\x00\x01tvalue", 2 + len(data)
    )


@pytest.mark.parametrize("length", [0, 8, frames.LENGTH_MAX + 1])
def test_a_bad_length_is_judged_from_its_four_bytes(length: int) -> None:
    with pytest.raises(PeerProtocolError, match="frame length"):
        frames.decode_frame(length.to_bytes(4), 0, 4)


@given(topic=st.text(max_size=30), message=st.binary(max_size=50), qos=st.integers(0, 255))
def test_publish_round_trip(topic: str, message: bytes, qos: int) -> None:
    data = frames.encode_publish(5, topic, message, qos)
    frame = frames.decode_frame(data, 0, len(data))
    assert frame is not None
    assert frames.decode_publish(frame.payload) == (qos, topic, message)


@given(code=st.integers(0, 65535), message=st.text(max_size=100))
def test_nack_round_trip(code: int, message: str) -> None:
    data = frames.encode_nack(5, code, message)
    assert frames.decode_nack(data[frames.HEAD_SIZE :]) == (code, message)


def test_an_over_long_refusal_is_cut_between_characters() -> None:
    data = frames.encode_nack(1, 500, "é" * 5000)
    _, message = frames.decode_nack(data[frames.HEAD_SIZE :])
    assert message == "é" * (frames.NACK_TEXT_MAX // 2)


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x01\x90", b"\x01\x90\x00\x05abc"])
def test_a_malformed_nack_is_refused(payload: bytes) -> None:
    with pytest.raises(BrokerError, match="invalid NACK payload"):
        frames.decode_nack(payload)
