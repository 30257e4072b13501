"""Rows into upsert tables: which file a row belongs to, what is kept of rows with equal keys. Pure Arrow."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.lake.table import TableSpec

POSITION_BITS = 20
_ROW = "__row"


def buckets(rows: pa.Table, spec: TableSpec) -> Iterator[tuple[str, pa.Table]]:
    """The rows by bucket: the hour of their time (`date=YYYY-MM-DD/HH`), else a million of offsets.

    A key belongs to one bucket for ever, so a bucket can be replaced by itself.
    """
    if not rows.num_rows:
        return
    names: Any
    if spec.time is not None:
        names = pc.strftime(rows.column(spec.time), format="date=%Y-%m-%d/%H")
    else:
        assert spec.position is not None
        million = pc.shift_right(rows.column(spec.position), pa.scalar(POSITION_BITS, pa.int64()))
        names = pc.utf8_lpad(million.cast(pa.string()), width=12, padding="0")
    for name in sorted(pc.unique(names).to_pylist()):
        yield name, rows.filter(pc.equal(names, name))


def merged(old: pa.Table | None, new: pa.Table, spec: TableSpec) -> pa.Table:
    """One row for each key, in the order of the keys: in each column the last value that is not null.

    `new` counts as later than `old`, and a later row of `new` as later than an earlier one. Columns that only one of
    them has are kept. Nulls become what the table's defaults say; rows whose required column is null are left out.
    """
    tables = [new] if old is None else [old, new]
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    numbered = rows.select(list(spec.keys)).append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    keys = numbered.group_by(list(spec.keys)).aggregate([(_ROW, "max")]).sort_by([(k, "ascending") for k in spec.keys])
    columns: dict[str, Any] = {
        name: keys.column(name) if name in spec.keys else _last_values(rows, numbered, keys, name, spec)
        for name in rows.column_names
    }
    result = pa.table(columns, schema=rows.schema)
    for name, value in spec.defaults.items():
        at = result.schema.get_field_index(name)
        if at >= 0:
            filled = pc.fill_null(result.column(at), pa.scalar(value, result.schema.field(at).type))
            result = result.set_column(at, result.schema.field(at), filled)
    if spec.required is not None:
        result = result.filter(pc.is_valid(result.column(spec.required)))
    return result


def _last_values(
    rows: pa.Table, numbered: pa.Table, keys: pa.Table, name: str, spec: TableSpec
) -> "pa.ChunkedArray[Any]":
    """For each key the last value of a column that is not null."""
    valid = pc.is_valid(rows.column(name))
    if pc.all(valid).as_py():
        return rows.column(name).take(keys.column(f"{_ROW}_max"))
    found = numbered.filter(valid).group_by(list(spec.keys)).aggregate([(_ROW, "max")])
    by = list(spec.keys)
    joined = keys.select(by).append_column("__at", pa.array(range(keys.num_rows), pa.int64()))
    joined = joined.join(found, keys=by, join_type="left outer").sort_by("__at")
    return rows.column(name).take(joined.column(f"{_ROW}_max"))
