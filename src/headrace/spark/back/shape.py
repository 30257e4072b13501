"""Rows of a table as the messages that are sent: which headers they get, where they go. Builds Spark columns only."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REPLAYED_FROM = "headrace-replayed-from"
REDRIVEN_FROM = "headrace-redriven-from"
ORIGIN_HEADERS = (
    "headrace-origin-topic", "headrace-origin-offset", "headrace-origin-subscription", "headrace-reason",
    "headrace-attempts",
)  # fmt: skip
OPTIONAL = {
    "key": "binary",
    "headers": "array<struct<key: string, value: binary>>",
    "message_id": "string",
    "protocol": "string",
}
"""What a message may have besides its value, and the type it has where a table lacks it."""

ENVELOPE = ("content-type", "application/grpcq")
"""What says of a value that came in by another door than grpcq's that it is an envelope nevertheless."""


def messages(rows: "DataFrame", topic: "Column", header: str, dropped: tuple[str, ...] = ()) -> "DataFrame":
    """The rows as messages for `topic`; `header` tells the offset they had, headers named in `dropped` are left out."""
    from pyspark.sql import functions as f

    def _given(name: str, kind: str) -> "Column":
        return rows[name] if name in rows.columns else f.lit(None).cast(kind)

    given = {name: _given(name, kind) for name, kind in OPTIONAL.items()}
    own = f.filter(
        f.coalesce(given["headers"], f.array().cast(OPTIONAL["headers"])),
        lambda each: ~each["key"].isin(header, *dropped),
    )
    origin = f.struct(f.lit(header).alias("key"), f.col("offset").cast("string").cast("binary").alias("value"))
    is_envelope = (given["protocol"] == "grpcq") & ~f.exists(own, lambda each: each["key"] == ENVELOPE[0])
    said = f.struct(f.lit(ENVELOPE[0]).alias("key"), f.lit(ENVELOPE[1]).cast("binary").alias("value"))
    kind = f.when(is_envelope, f.array(said)).otherwise(f.array().cast(OPTIONAL["headers"]))
    return rows.select(
        "offset",
        topic.alias("topic"),
        _bytes(rows, "value", f.col("value")).alias("value"),
        _bytes(rows, "key", given["key"]).alias("key"),
        f.concat(own, kind, f.array(origin)).alias("headers"),
        given["message_id"].cast("string").alias("message_id"),
    )


def _bytes(rows: "DataFrame", name: str, column: "Column") -> "Column":
    """The column as bytes; numbers as the text they are written with."""
    kind = dict(rows.dtypes).get(name, "binary")
    return column if kind == "binary" else column.cast("string").cast("binary")
