"""Edits, and what Spark says about SQL in one line."""

import pytest

from headrace.spark.back.query import BadQuery, Edit, brief, parse_edit


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("value = upper(value)", Edit("value", "upper(value)")),
        ("  key='k' ", Edit("key", "'k'")),
        ("value = if(topic = 'a', 'b', value)", Edit("value", "if(topic = 'a', 'b', value)")),
        ("message_id = concat(message_id,\n '-2')", Edit("message_id", "concat(message_id,\n '-2')")),
    ],
)
def test_an_edit_is_a_column_and_an_expression(text: str, edit: Edit) -> None:
    assert parse_edit(text) == edit


@pytest.mark.parametrize("text", ["", "value", "value =", "= 1", "value == 1", "1 = 2"])
def test_what_is_no_edit_is_refused(text: str) -> None:
    with pytest.raises(BadQuery, match="is no edit"):
        parse_edit(text)


@pytest.mark.parametrize("name", ["offset", "topic", "timestamp", "valeu"])
def test_only_a_message_can_be_edited(name: str) -> None:
    with pytest.raises(BadQuery, match="only key, value, headers, message_id can"):
        parse_edit(f"{name} = 1")


def test_sparks_words_are_kept_and_its_plans_are_not() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you mean [`date`]?"
        " SQLSTATE: 42703; line 1 pos 0;\n'Filter ('nope = 1)\n+- Relation [offset#0L] parquet\n"
    )
    assert brief(text) == "A column with name `nope` cannot be resolved. Did you mean [`date`]?"
    syntax = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near '=='. SQLSTATE: 42601 (line 1, pos 8)\n\n== SQL ==\nx"
    assert brief(syntax) == "Syntax error at or near '=='."
    assert brief("plain") == "plain."
