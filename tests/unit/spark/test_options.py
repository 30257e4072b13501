"""Options: what they come to, and what the user is told when they are wrong."""

import pickle
from pathlib import Path

import pytest

from headrace.feed.schema import EVENTS, MESSAGES
from headrace.spark.source.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    OptionError,
    ReadOptions,
    read_options,
    write_options,
)
from headrace.spark.source.values import EARLIEST, LATEST, Position


def read(*, streaming: bool = False, **given: str) -> ReadOptions:
    return read_options({"subscribe": "orders"} | given, streaming=streaming)


def test_what_is_not_given_has_the_documented_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_KEY", raising=False)
    options = read()
    assert options.connection.endpoint == "grpc://127.0.0.1:8815"
    assert options.connection.key is None
    assert options.connection.retry_timeout_s == 60
    assert options.topics == ("orders",)
    assert options.columns == tuple(MESSAGES.names)
    assert (options.starting, options.ending) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert options.reader == "spark:orders"
    assert read(streaming=True).starting == LATEST


def test_every_option_is_taken_in_any_case() -> None:
    given = {
        "ENDPOINT": "grpc+tls://broker:8815", "key": "k", "retrytimeout": "5s", "subscribe": "a,b",
        "COLUMNS": "value,offset", "startingoffsets": "7", "failondataloss": "false", "maxOffsetsPerTrigger": "100",
        "minoffsetspertrigger": "10", "maxbytespertrigger": "1m", "maxtriggerdelay": "1m", "minpartitions": "3",
        "maxrecordsperpartition": "50", "reader": "mine",
    }  # fmt: skip
    options = read_options(given, streaming=True)
    assert options.connection.endpoint == "grpc+tls://broker:8815"
    assert options.connection.retry_timeout_s == 5
    assert options.topics == ("a", "b")
    assert options.columns == ("value", "offset")
    assert options.starting == Position("offset", 7)
    assert not options.fail_on_data_loss
    assert (options.offsets_max, options.offsets_min, options.bytes_max) == (100, 10, 1 << 20)
    assert (options.trigger_delay_max_s, options.partitions_min, options.records_per_partition_max) == (60, 3, 50)
    assert options.reader == "mine"


def test_options_travel_and_keep_the_key_to_themselves() -> None:
    options = read(key="very secret")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "very secret" not in repr(options)


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KEY", "from afar")
    assert read().connection.key == "from afar"
    assert read(key="from here").connection.key == "from here"


def test_roots_are_a_file_or_the_text_itself(tmp_path: Path) -> None:
    text = "-----BEGIN CERTIFICATE-----\n"
    (tmp_path / "ca.pem").write_text(text)
    assert read(tlsRoots=str(tmp_path / "ca.pem")).connection.tls_roots == text.encode()
    assert read(tlsRoots=text).connection.tls_roots == text.encode()


def test_events_need_no_topics_and_have_their_own_columns() -> None:
    options = read_options({"stream": "events"}, streaming=True)
    assert (options.topics, options.pattern) == (None, None)
    assert options.columns == tuple(EVENTS.names)
    assert options.reader == "spark:events:*"


def test_the_pattern_of_everything_is_no_pattern() -> None:
    assert read_options({"subscribePattern": ".*"}, streaming=False).pattern is None
    assert read_options({"subscribePattern": "o.*"}, streaming=False).reader == "spark:o.*"


def test_headers_can_be_left_out() -> None:
    assert "headers" not in read(includeHeaders="false").columns


def test_a_timestamp_wins_over_an_offset() -> None:
    options = read(startingOffsets="5", startingTimestamp="1000", endingOffsets="9", endingTimestamp="2000")
    assert options.starting == Position("timestamp", 1_000_000)
    assert options.ending == Position("timestamp", 2_000_000)


def test_no_name_no_reports_and_a_long_one_is_cut() -> None:
    assert read(reader="").reader is None
    names = [f"topic-{number:04}" for number in range(100)]
    one, other = (read(subscribe=",".join([*names, last])).reader for last in ("x", "y"))
    assert one is not None
    assert other is not None
    assert len(one) == len(other) == 200
    assert one != other


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribes": "orders"}, "unknown option subscribes for read; did you mean subscribe?"),
        ({"startingoffset": "1"}, "did you mean startingOffsets?"),
        (
            {"kafka.bootstrap.servers": "x:1"},
            "option kafka.bootstrap.servers for read; there are endpoint, key",
        ),
        ({"topic": "orders"}, "unknown option topic for read"),
        ({}, "Give option subscribe"),
        ({"subscribe": "a", "subscribePattern": "b"}, "not both"),
        (
            {"subscribe": "a", "startingOffsets": "first"},
            "option startingOffsets is 'first': expected earliest",
        ),
        ({"subscribe": "a", "startingOffsets": "latest"}, "startingOffsets is latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets is earliest"),
        ({"subscribe": "a", "startingOffsets": "9", "endingOffsets": "8"}, "startingOffsets lies behind option ending"),
        ({"subscribe": "a", "stream": "letters"}, "option stream is 'letters': expected messages or events"),
        (
            {"subscribe": "a", "columns": "value,ofset"},
            "option columns: unknown columns ofset; messages have key",
        ),
        ({"subscribe": "a", "columns": "headers", "includeHeaders": "false"}, "option columns names headers"),
        ({"subscribe": "a", "events": "acked"}, "option events is for stream events, this one is messages"),
        ({"stream": "events", "envelopes": "true"}, "option envelopes is for stream messages, this one is events"),
        ({"subscribe": "a", "endpoint": "127.0.0.1:8815"}, "expected grpc://host:port"),
        ({"subscribe": "a", "tlsRoots": "/nowhere.pem"}, "option tlsRoots is '/nowhere.pem': no certificates there"),
        ({"subscribe": "a", "reader": "x" * 201}, "option reader has 201 characters"),
        (
            {"subscribe": "a", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "option minOffsetsPerTrigger is 5, more than maxOffsetsPerTrigger 4",
        ),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(given, streaming=False)
    assert said in str(caught.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="endingOffsets is for"):
        read(streaming=True, endingOffsets="9")
    assert read_options({"subscribe": "a", "endingOffsets": "9"}, streaming=None).columns


def test_sparks_own_options_are_let_through() -> None:
    options = write_options({"topic": "out", "checkpointLocation": "c", "queryName": "q"}, streaming=True)
    assert options.topic == "out"


@pytest.mark.parametrize(
    ("given", "streaming", "said"),
    [
        ({"subscribe": "a"}, False, "unknown option subscribe for write"),
        ({"topik": "a"}, False, "did you mean topic?"),
        ({"topic": " "}, False, "option topic is ' ': it is empty"),
        ({"batch": "1"}, False, "name it by option writer"),
        ({"writer": "w"}, True, "option writer is for df.write"),
    ],
)
def test_what_is_wrong_with_a_write_is_named(given: dict[str, str], streaming: bool, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        write_options(given, streaming=streaming)
    assert said in str(caught.value)


def test_the_page_lists_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    missing = [name for name in {*READ_OPTIONS, *WRITE_OPTIONS} if f"| `{name}` |" not in page]
    assert not missing
