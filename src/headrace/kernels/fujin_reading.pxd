"""The C types of fujin_reading.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef unsigned char _SETTLED
cdef Py_ssize_t _ID_SIZE, _IDS_AT, _HEADER_SIZE, _OVERLONG

@cython.locals(count=Py_ssize_t, i=Py_ssize_t, tag_in=cython.p_uchar, out=cython.p_uchar, replies=bytes)
cpdef bytes encode_confirmations(bytes tags)

@cython.locals(
    topic_size=Py_ssize_t, ends_at=Py_ssize_t, values_at=Py_ssize_t, overhead=Py_ssize_t, total=Py_ssize_t,
    data="const unsigned char*", first=Py_ssize_t, last=Py_ssize_t, final=Py_ssize_t, size=Py_ssize_t, messages=bytes,
    out=cython.p_uchar, i=Py_ssize_t,
)
cpdef bytes encode_messages(
    const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t index, Py_ssize_t count, unsigned char code,
    unsigned long long first_id, bint with_id, bint filled
)

@cython.locals(found=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t _empties(const unsigned char* data, Py_ssize_t ends_at, Py_ssize_t count) noexcept

cpdef Py_ssize_t settle_size(
    const unsigned char[::1] buf, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count, Py_ssize_t id_max
)

@cython.locals(position=Py_ssize_t, i=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t _settle_size(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count, Py_ssize_t id_max
) noexcept

@cython.locals(
    data="const unsigned char*", kind=cython.uchar, at=Py_ssize_t, count=Py_ssize_t, size=Py_ssize_t,
    position=Py_ssize_t, deliveries=list,
)
cpdef tuple scan_settles(
    const unsigned char[::1] buf, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t ids_max, Py_ssize_t id_max
)

@cython.locals(
    data="const unsigned char*", answer="const unsigned char*", end=Py_ssize_t, bad_size=Py_ssize_t, at=Py_ssize_t,
    commands=Py_ssize_t, total=Py_ssize_t, count=Py_ssize_t, scratch=bytes, start=cython.p_uchar,
    out=cython.p_uchar, answered=Py_ssize_t, _=Py_ssize_t, size=Py_ssize_t, settled=cython.bint,
)
cdef bytes _results(bytes run, bytes answers, bytes good, bytes bad)

@cython.locals(a=cython.ulonglong, b=cython.ulonglong, c=cython.ulonglong, d=cython.ulonglong, word=cython.ulonglong)
cdef unsigned long long _u32(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(a=cython.uint, b=cython.uint, c=cython.uint, d=cython.uint, word=cython.uint)
cdef unsigned int _u32_le(const unsigned char* data, Py_ssize_t at) noexcept

cdef void _put_u32(unsigned char* out, unsigned int word) noexcept
