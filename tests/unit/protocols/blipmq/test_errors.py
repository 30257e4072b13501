"""The table of refusals is complete, and uses only the codes the protocol knows."""

import pytest

from headrace.model.errors import BrokerError, Code
from headrace.protocols.blipmq.errors import NACK_CODES, nack_of


def test_every_code_of_ours_has_a_number() -> None:
    assert set(NACK_CODES) == set(Code)
    assert set(NACK_CODES.values()) == {400, 401, 404, 426, 500}


@pytest.mark.parametrize("code", Code)
def test_a_refusal_keeps_its_words_except_for_the_unknown(code: Code) -> None:
    expected = "unknown subscription or delivery tag" if code is Code.UNKNOWN else "words"
    assert nack_of(BrokerError(code, "words")) == (NACK_CODES[code], expected)
