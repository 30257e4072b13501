"""Fujin's replies by the run, interpreted and compiled, against the plain way of encoding them."""

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.batch import Batch, build_batch
from headrace.protocols.fujin.frames import (
    Command,
    Response,
    encode_error,
    encode_message,
    encode_reply,
    encode_results,
    encode_settle,
)
from tests.harness.properties import tried
from tests.unit.kernels.both_ways import both_ways

SETTLED = 1 << 63
IDS_MAX = 600
ID_MAX = 32

each_way = pytest.mark.parametrize("kernel", both_ways("fujin_reading"))
values = st.lists(st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"same"])), min_size=1, max_size=40)
numbers = st.integers(min_value=0, max_value=2**63 - 1)
ids = st.one_of(numbers, numbers.map(lambda n: n | SETTLED)).map(lambda n: n.to_bytes(8))
names = st.one_of(ids, st.binary(max_size=ID_MAX))
settles = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.one_of(st.lists(ids), st.lists(names))), max_size=6)


@each_way
@given(tags=st.lists(st.integers(0, 2**32 - 1), max_size=40), code=st.sampled_from([2, 4]))
def test_confirmations(kernel: ModuleType, tags: list[int], code: int) -> None:
    packed = bytes((code,)) + struct.pack(f">{len(tags)}I", *tags)
    assert kernel.encode_confirmations(packed) == b"".join(encode_reply(Response(code), tag) for tag in tags)


@each_way
@tried(150)
@given(
    values=values,
    span=st.tuples(st.integers(0, 39), st.integers(0, 39)),
    code=st.sampled_from([0, 6]),
    first=numbers,
    with_id=st.booleans(),
    filled=st.booleans(),
    headers=st.booleans(),
)
def test_messages(
    kernel: ModuleType,
    values: list[bytes],
    span: tuple[int, int],
    code: int,
    first: int,
    with_id: bool,
    filled: bool,
    headers: bool,
) -> None:
    index = min(*span, len(values) - 1)
    count = min(abs(span[0] - span[1]) + 1, len(values) - index)
    pairs = [[("k", b"v")]] * len(values) if headers else None
    stored = b"before.." + build_batch("orders", values, timestamp_us=1, headers=pairs) + b"behind"
    batch = Batch(stored, 8, 0)
    expected = b"".join(
        bytes((code,))[: code != 0]
        + encode_message((first + i).to_bytes(8) if with_id else None, value or b"\0"[:filled])
        for i, value in enumerate(values[index : index + count])
    )
    assert kernel.encode_messages(batch.buffer, batch.start, index, count, code, first, with_id, filled) == expected


def to_settle(commands: list[tuple[int, list[bytes]]]) -> list[int]:
    return [int.from_bytes(name) for _, ids in commands for name in ids if len(name) == 8 and name[0] < 0x80]


@each_way
@tried(200)
@given(commands=settles, command=st.sampled_from([Command.ACK, Command.NACK]), before=st.binary(max_size=5))
def test_a_scan_finds_every_id_that_is_to_be_settled(
    kernel: ModuleType, commands: list[tuple[int, list[bytes]]], command: Command, before: bytes
) -> None:
    run = b"".join(encode_settle(command, tag, ids) for tag, ids in commands)
    other = Command.NACK if command is Command.ACK else Command.ACK
    data = before + run + encode_settle(other, 1, [bytes(8)])
    if not run:
        return
    assert kernel.scan_settles(data, len(before), len(data), IDS_MAX, ID_MAX) == (
        len(before + run),
        to_settle(commands),
    )


@each_way
@tried(200)
@given(commands=settles, command=st.sampled_from([Command.ACK, Command.NACK]), reference=st.booleans(), data=st.data())
def test_each_id_is_answered_for_by_itself(
    kernel: ModuleType,
    commands: list[tuple[int, list[bytes]]],
    command: Command,
    reference: bool,
    data: st.DataObject,
) -> None:
    count = len(to_settle(commands))
    accepted = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    answers = iter(accepted)
    expected = b"".join(
        encode_results(
            Response(command),
            tag,
            [(name, None if len(name) == 8 and (name[0] >= 0x80 or next(answers)) else "lost") for name in ids],
            reference=reference,
        )
        for tag, ids in commands
    )
    run = b"".join(encode_settle(command, tag, ids) for tag, ids in commands)
    assert kernel.encode_results(run, accepted, encode_error("lost") if reference else b"") == expected


@each_way
@given(names=st.lists(names, max_size=9), tag=st.integers(0, 2**32 - 1))
def test_the_size_of_a_settle_grows_with_what_is_known_of_it(kernel: ModuleType, names: list[bytes], tag: int) -> None:
    command = b"??" + encode_settle(Command.ACK, tag, names)
    sizes = [kernel.settle_size(command, 2, end, len(names), ID_MAX) for end in range(11, len(command) + 1)]
    assert sizes[-1] == len(command) - 2
    for end, size in enumerate(sizes[:-1], 11):
        assert end < 2 - size <= len(command)
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)


@each_way
def test_a_scan_leaves_alone_what_is_too_long(kernel: ModuleType) -> None:
    good = encode_settle(Command.ACK, 1, [bytes(8)])
    for wrong in (
        encode_settle(Command.ACK, 1, [bytes(8)] * (IDS_MAX + 1)),
        encode_settle(Command.ACK, 1, [bytes(8), bytes(ID_MAX + 1)]),
        encode_settle(Command.ACK, 1, [bytes(8), bytes(8)])[:-1],
        good[:8],
    ):
        assert kernel.scan_settles(good + wrong, 0, len(good + wrong), IDS_MAX, ID_MAX) == (len(good), [0])
        assert kernel.scan_settles(wrong, 0, len(wrong), IDS_MAX, ID_MAX) == (0, [])
    assert kernel.settle_size(encode_settle(Command.ACK, 1, [bytes(ID_MAX + 1)]), 0, 13, 1, ID_MAX) == 0
