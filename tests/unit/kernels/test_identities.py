"""The memory of ids against a plain dict, compiled and interpreted; and what of an id is remembered."""

import importlib
import struct
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels import load_source

KERNELS: list[Any] = [importlib.import_module("headrace.kernels.identities"), load_source("identities", "plain_ids")]
both = pytest.mark.parametrize("kernel", KERNELS, ids=["as built", "interpreted"])


def column(ids: list[bytes], before: int = 3) -> tuple[bytes, int]:
    """A column of ids somewhere in a buffer, and where its ends begin."""
    ends = array("I", accumulate(map(len, ids), initial=0)).tobytes()
    return bytes(before) + ends + bytes(-len(ends) % 8) + b"".join(ids) + b"\0", before


def words_of(kernel: Any, ids: list[bytes]) -> Any:
    buffer, ends_at = column(ids)
    return kernel.digest_ids(buffer, ends_at, len(ids))


ids = st.one_of(
    st.uuids().map(lambda each: str(each).encode()),
    st.uuids().map(lambda each: str(each).upper().encode()),
    st.binary(max_size=40),
    st.text(max_size=36).map(str.encode),
    st.sampled_from([str(UUID(int=n)).encode() for n in (0, 1, 1 << 64, (1 << 128) - 1)]),
)


@given(st.lists(ids, max_size=20))
def test_equal_ids_and_only_those_have_equal_bits_however_it_was_built(given_ids: list[bytes]) -> None:
    told = [list(words_of(kernel, given_ids)) for kernel in KERNELS]
    assert told[0] == told[1]
    pairs = list(zip(told[0][::2], told[0][1::2], strict=True))
    for one, bits in zip(given_ids, pairs, strict=True):
        assert (bits == (0, 0)) is (one == b"")
        for other, other_bits in zip(given_ids, pairs, strict=True):
            assert (bits == other_bits) is (one == other)


@both
def test_a_uuid_is_its_own_bits(kernel: Any) -> None:
    one = UUID("550e8400-e29b-41d4-a716-446655440000")
    assert struct.pack("<QQ", *words_of(kernel, [str(one).encode()])) == one.bytes


names = st.lists(st.sampled_from([b"%d" % n for n in range(60)]), max_size=25)
steps: st.SearchStrategy[tuple[str, list[bytes], int]] = st.one_of(
    st.tuples(st.just("admit"), names, st.integers(0, 5)),
    st.tuples(st.just("take back"), names, st.just(0)),
    st.tuples(st.just("expire"), st.just([]), st.integers(0, 40)),
    st.tuples(st.just("drop"), st.just([]), st.integers(0, 10)),
    st.tuples(st.just("restart"), st.just([]), st.just(0)),
)


@both
@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=60))
def test_it_remembers_what_a_dict_would(kernel: Any, story: list[tuple[str, list[bytes], int]]) -> None:
    recent, model, now = kernel.Recent(), dict[bytes, int](), 1
    for what, given_ids, number in story:
        words = words_of(kernel, given_ids)
        if what == "admit":
            now += number
            known = kernel.admit(recent, words, now)
            expected = []
            for each in given_ids:
                expected.append(each in model)
                model.setdefault(each, now)
            assert list(known or bytes(len(given_ids))) == expected
        elif what == "take back":
            kernel.take_back(recent, words)
            for each in given_ids:
                model.pop(each, None)
        elif what == "restart":
            recent = kernel.read(kernel.written(recent))
        else:
            until, at_least = (now - number, 0) if what == "expire" else (0, number)
            gone = [each for place, (each, time) in enumerate(model.items()) if time <= until or place < at_least]
            assert kernel.expire(recent, until, at_least) == len(gone)
            for each in gone:
                del model[each]
        assert recent.count == len(model)
        assert kernel.newest(recent) == max(model.values(), default=0)
    held = words_of(kernel, list(model))
    assert list(kernel.admit(recent, held, now) or b"") == [1] * len(model)


@both
def test_what_is_written_down_is_read_by_either(kernel: Any) -> None:
    recent = kernel.Recent()
    for n in range(500):
        kernel.admit(recent, words_of(kernel, [b"%d" % n]), n + 1)
    kernel.expire(recent, 100, 0)
    stored = kernel.written(recent)
    assert len(stored) == 400 * kernel.ENTRY_SIZE
    for other in KERNELS:
        again = other.read(stored + b"torn")
        assert other.written(again) == stored
        assert list(other.admit(again, words_of(other, [b"99", b"100"]), 999) or b"") == [0, 1]


@both
def test_time_never_goes_back(kernel: Any) -> None:
    recent = kernel.Recent()
    kernel.admit(recent, words_of(kernel, [b"late"]), 100)
    kernel.admit(recent, words_of(kernel, [b"earlier"]), 50)
    assert kernel.expire(recent, 99, 0) == 0
    assert kernel.expire(recent, 100, 0) == 2


@both
def test_memory_follows_what_is_remembered_not_what_ever_was(kernel: Any) -> None:
    recent = kernel.Recent()
    for n in range(2000):
        kernel.admit(recent, words_of(kernel, [b"%d" % n]), n)
        kernel.expire(recent, n - 50, 0)
    assert recent.count == 50
    assert recent.places <= 256


def hard_ids() -> Callable[[int], bytes]:
    """Ids that a table without secrets would put into one run: equal low bits, high bits that only count."""
    return lambda n: str(UUID(int=(n + 1 << 64) | 7)).encode()


@both
def test_ids_that_count_upwards_do_not_make_long_runs(kernel: Any) -> None:
    recent = kernel.Recent()
    made = hard_ids()
    kernel.admit(recent, words_of(kernel, [made(n) for n in range(4000)]), 1)
    slots = list(recent.slots)
    longest = run = 0
    for slot in slots + slots:
        run = run + 1 if slot else 0
        longest = max(longest, run)
    assert longest < 400
