"""The C types of gate.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef Py_ssize_t _HEADER_SIZE
cdef unsigned int _KIND, _PROTOCOL_MAX, _COLUMNS_MAX
cdef long long _TIME_MAX
cdef int _SOUND, _HEADER, _TOPIC, _SIZES, _ORDER, _PADDING, _HEADERS, _TEXT

cpdef bint is_text(const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end) except -1

cpdef int check_part(const unsigned char[::1] buf, Py_ssize_t start, Py_ssize_t end) except -1

@cython.locals(
    size=Py_ssize_t, count=Py_ssize_t, topic_size=Py_ssize_t, flags=cython.uint, after=Py_ssize_t, at=Py_ssize_t,
    fault=int,
)
cdef int fault_of(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1

@cython.locals(
    at=Py_ssize_t, ends_size=Py_ssize_t, column=int, size=Py_ssize_t, cells_at=Py_ssize_t, fault=int,
)
cdef int _columns(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t columns_at, Py_ssize_t after, Py_ssize_t count,
    unsigned int flags
) except -1

@cython.locals(wrong=cython.uint, i=Py_ssize_t)
cdef bint _in_order(const unsigned char* data, Py_ssize_t ends_at, Py_ssize_t count) except -1

cdef bint _is_time(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(i=Py_ssize_t)
cdef bint _is_zero(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(i=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t)
cdef bint _are_texts(
    const unsigned char* data, Py_ssize_t ends_at, Py_ssize_t count, Py_ssize_t cells_at, Py_ssize_t size
) except -1

@cython.locals(row=Py_ssize_t, at=Py_ssize_t, after=Py_ssize_t, size=Py_ssize_t)
cdef int _headers_fault(
    const unsigned char* data, Py_ssize_t ends_at, Py_ssize_t count, Py_ssize_t cells_at
) except -1

@cython.locals(i=Py_ssize_t, seen=cython.uchar)
cdef bint _is_ascii(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(byte=cython.uint, more=Py_ssize_t, low=cython.uint, high=cython.uint, i=Py_ssize_t)
cdef bint is_text_at(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept

cdef Py_ssize_t _padded(Py_ssize_t size) noexcept

cdef Py_ssize_t _u16(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(word=cython.uint)
cdef Py_ssize_t _u32(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(word=cython.longlong)
cdef long long _i64(const unsigned char* data, Py_ssize_t at) noexcept
