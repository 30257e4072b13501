"""The C types of columns.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef Py_ssize_t _WIDTH, _ROWS, _SKIPPED, _COUNT, _COLUMNS, _RANGES, _RANGES_AT, _RANGE_SIZE

@cython.locals(
    data="const unsigned char*", ends_out="unsigned int*", cells_out="unsigned char*", at=Py_ssize_t, row=Py_ssize_t,
    part=Py_ssize_t, entry=Py_ssize_t, slot=Py_ssize_t, rows=Py_ssize_t, ends_at=Py_ssize_t, size=Py_ssize_t,
    first=Py_ssize_t, start=Py_ssize_t,
)
cpdef gather_cells(
    const unsigned char[::1] buf, const long long[::1] table, Py_ssize_t parts, Py_ssize_t column,
    unsigned int[::1] ends, unsigned char[::1] cells
)

@cython.locals(
    data="const unsigned char*", out="unsigned char*", at=Py_ssize_t, part=Py_ssize_t, entry=Py_ssize_t,
    size=Py_ssize_t, start=Py_ssize_t,
)
cpdef gather_ranges(
    const unsigned char[::1] buf, const long long[::1] table, Py_ssize_t parts, unsigned char[::1] ranges
)

@cython.locals(
    data="const unsigned char*", count=cython.longlong, keys_size=cython.longlong, values_size=cython.longlong,
    row=Py_ssize_t, at=cython.longlong, end=cython.longlong, key_size=cython.longlong, value_size=cython.longlong,
)
cpdef tuple measure_headers(const int[::1] ends, const unsigned char[::1] cells)

@cython.locals(
    data="const unsigned char*", keys_out="unsigned char*", values_out="unsigned char*", number=Py_ssize_t,
    key_at=Py_ssize_t, value_at=Py_ssize_t, row=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, key_size=Py_ssize_t,
    value_size=Py_ssize_t,
)
cpdef split_headers(
    const int[::1] ends, const unsigned char[::1] cells, int[::1] list_ends, int[::1] key_ends,
    unsigned char[::1] keys, int[::1] value_ends, unsigned char[::1] values
)

cdef Py_ssize_t _key_size(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(word=cython.uint)
cdef Py_ssize_t _value_size(const unsigned char* data, Py_ssize_t at) noexcept
