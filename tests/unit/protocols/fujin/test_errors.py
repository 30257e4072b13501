"""Every reason of ours as a text."""

import pytest

from headrace.model.errors import BrokerError, Code
from headrace.protocols.fujin.errors import BARE_TEXTS, text_of
from headrace.protocols.fujin.frames import ERROR_SIZE_MAX, Cursor, encode_error


def test_every_code_has_a_text() -> None:
    assert BARE_TEXTS.keys() == set(Code)


@pytest.mark.parametrize("code", list(Code))
def test_no_error_string_is_empty(code: Code) -> None:
    assert text_of(BrokerError(code, "because")) == "because"
    assert text_of(BrokerError(code, ""))
    assert encode_error("") == b"\1\0\0\0\x05error"


def test_an_overlong_error_is_cut_between_characters() -> None:
    data = encode_error("é" * ERROR_SIZE_MAX)
    assert Cursor(data, 0, len(data)).error() == "é" * (ERROR_SIZE_MAX // 2)
