"""The page about crossing shows what the code says."""

from pathlib import Path

from headrace.model.batch import Protocol
from headrace.protocols.crossing import PASSAGES, Field, survives, tables

PAGE = Path("docs/protocols/crossing.md")
BEGIN = "<!-- made by `python -m headrace.protocols.crossing` -->\n"
END = "<!-- end -->\n"


def test_the_page_shows_the_tables_made_from_the_code() -> None:
    text = PAGE.read_text()
    shown = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert shown.strip() == tables().strip()


def test_every_door_a_peer_can_come_in_by_has_a_passage() -> None:
    assert [each.door for each in PASSAGES] == [Protocol.BLIPMQ, Protocol.SSPQ, Protocol.FUJIN, Protocol.GRPCQ]


def test_a_field_survives_where_one_door_takes_and_the_other_gives_it() -> None:
    assert survives(Field.HEADERS, Protocol.FUJIN, Protocol.GRPCQ)
    assert not survives(Field.HEADERS, Protocol.GRPCQ, Protocol.FUJIN)
    assert all(survives(Field.VALUE, a.door, b.door) for a in PASSAGES for b in PASSAGES)
