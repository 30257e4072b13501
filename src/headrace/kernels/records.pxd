"""The C types of records.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef Py_ssize_t _RECORD, _PART_HEAD, _BATCH, _EVENT, _RANGE, _LOST_SIZE, _ID_SIZE, _WIDTH, _RECORD_MAX, _SMALL
cdef long long _MARK_BYTES
cdef unsigned int _SYNCED_MARK, _FLAGS, _POLYNOMIAL
cdef unsigned char _BATCH_KIND, _EVENT_KIND, _LOST_KIND
cdef int _MORE, _FULL, _LIMIT, _BAD, _LOST, _ON
cdef unsigned int _WANT_BATCHES, _WANT_EVENTS
cdef unsigned int _TABLES[2048]

cdef class Walk:
    cdef public Py_ssize_t at, checked, needed, unsound_at
    cdef public long long origin, expected, next, lost_first, lost_count, unsound_first
    cdef public unsigned int kinds
    cdef public long long rows, bytes
    cdef public Py_ssize_t parts
    cdef public list marks
    cdef long long _marked
    cdef object _crc32
    cdef object _topics
    cdef bytes _topic
    cdef long long _code

@cython.locals(
    room=Py_ssize_t, data="const unsigned char*", at=Py_ssize_t, after=Py_ssize_t, size=Py_ssize_t,
    sized=cython.uint, reason=int,
)
cpdef int scan(
    const unsigned char[::1] buf, Py_ssize_t end, Walk walk, long long limit, long long rows_max, long long bytes_max,
    long long[::1] table
) except -1

@cython.locals(part=Py_ssize_t, row=Py_ssize_t, entry=Py_ssize_t)
cpdef tally(const long long[::1] table, Py_ssize_t parts, long long[::1] tallies)

@cython.locals(base=cython.longlong, span=cython.longlong, kind=cython.uint)
cdef int _list_parts(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t after, Walk walk, long long limit, long long rows_max,
    long long bytes_max, long long[::1] table, Py_ssize_t room
) except -1

@cython.locals(
    after=Py_ssize_t, count=cython.longlong, flags=cython.uint, skipped=cython.longlong, rows=cython.longlong,
    row=Py_ssize_t, slot=Py_ssize_t, column=int, column_at=Py_ssize_t, ends_size=Py_ssize_t, size=cython.longlong,
    first=cython.longlong, last=cython.longlong,
)
cdef bint _list_batch(
    const unsigned char* data, Py_ssize_t at, long long base, Walk walk, long long limit, long long rows_max,
    long long bytes_max, long long[::1] table
) noexcept

@cython.locals(low=cython.longlong, high=cython.longlong, middle=cython.longlong)
cdef long long _rows_within(
    const unsigned char* data, Py_ssize_t ends, long long skipped, long long rows, long long end_max
) noexcept

@cython.locals(
    ranges=cython.longlong, reason_size=Py_ssize_t, detail_size=Py_ssize_t, rows=cython.longlong, row=Py_ssize_t,
    number=cython.longlong,
)
cdef bint _list_event(const unsigned char* data, Py_ssize_t at, long long base, Walk walk, long long[::1] table) noexcept

@cython.locals(size=Py_ssize_t, name_at=Py_ssize_t, known=bytes, name=bytes)
cdef long long _topic_code(const unsigned char* data, Py_ssize_t at, Walk walk) except? -2

@cython.locals(said=cython.uint, crc=cython.uint)
cdef int _intact(
    const unsigned char[::1] buf, const unsigned char* data, Py_ssize_t at, Py_ssize_t after, Walk walk
) except -1

@cython.locals(count=cython.longlong, size=Py_ssize_t, kind=cython.uint)
cdef bint _adds_up(const unsigned char* data, Py_ssize_t at, Py_ssize_t after) noexcept

@cython.locals(word=cython.uint)
cdef unsigned int _crc(const unsigned char* data, Py_ssize_t at, Py_ssize_t end, unsigned int crc) noexcept

@cython.locals(byte=cython.uint, crc=cython.uint, place=Py_ssize_t)
cdef void _fill_tables() noexcept

cdef Py_ssize_t _padded(Py_ssize_t size) noexcept

cdef unsigned int _u16(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(word=cython.uint)
cdef unsigned int _u32(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(word=cython.longlong)
cdef long long _i64(const unsigned char* data, Py_ssize_t at) noexcept
