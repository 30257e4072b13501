"""Marks as rows: which dead letters the broker says were redriven. What is no mark of its own says nothing.

The broker wrote a mark if it came by no door of a client, holds whole offsets, and names what was there before it.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from headrace.model.marks import MARKED_MAX

pc: Any = pyarrow.compute
COLUMNS = ("offset", "protocol", "value")
"""What has to be read of the topic `$redriven`."""

OFFSET_SIZE = 8
_DOORS = pa.array(["internal", "spark"])


def letters_in(marks: pa.RecordBatch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The offsets of the dead letters that these rows of `$redriven` mark, and the row of each one's mark."""
    values: Any = marks.column("value")
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    ours = pc.fill_null(pc.is_in(marks.column("protocol"), value_set=_DOORS), False).to_numpy(zero_copy_only=False)
    whole = ours & (sizes % OFFSET_SIZE == 0) & (sizes <= MARKED_MAX * OFFSET_SIZE)
    text = b"".join(value for value, wanted in zip(values.to_pylist(), whole, strict=True) if wanted and value)
    letters = np.frombuffer(text, "<u8")
    rows = np.repeat(np.arange(len(sizes)), np.where(whole, sizes // OFFSET_SIZE, 0))
    before = letters < marks.column("offset").to_numpy(zero_copy_only=False).astype(np.uint64)[rows]
    return letters[before].astype(np.int64), rows[before]
