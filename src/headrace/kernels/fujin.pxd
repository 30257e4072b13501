"""The C types of fujin.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef unsigned char _WRITE, _WRITTEN
cdef Py_ssize_t _LEAST, _TOPIC_MAX, _KEY_MAX, _PART_AT, _TOPIC_AT, _NO_GROUP

cdef class Group:
    cdef str topic
    cdef bytes prefix
    cdef Py_ssize_t prefix_size
    cdef Py_ssize_t follower
    cdef bint superseded
    cdef Py_ssize_t count
    cdef Py_ssize_t values_size
    cdef Py_ssize_t cells_size
    cdef object collected
    cdef unsigned char* tag_out
    cdef unsigned char* end_out
    cdef unsigned char* value_out
    cdef unsigned int value_end
    cdef unsigned char* cell_end_out
    cdef unsigned char* cell_out
    cdef unsigned int cell_end

cdef class Form:
    cdef readonly bint with_headers
    cdef readonly Py_ssize_t message_max
    cdef readonly Py_ssize_t headers_max
    cdef readonly Py_ssize_t strings_max
    cdef readonly dict routes

@cython.locals(
    groups=list, latest=dict, number=Py_ssize_t, at=Py_ssize_t, runs=Py_ssize_t, prefix_size=Py_ssize_t,
    scratch=bytes, group=Group, marks=cython.p_uint, data="const unsigned char*",
)
cpdef tuple scan_writes(
    const unsigned char[::1] buf, Py_ssize_t pos, Py_ssize_t end, Form form, long long timestamp_us
)

@cython.locals(topic_size=Py_ssize_t)
cdef Py_ssize_t _prefix_size(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(strings=Py_ssize_t, first=Py_ssize_t, position=Py_ssize_t, size=Py_ssize_t, i=Py_ssize_t)
cdef Py_ssize_t _headers_size(const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Form form) except -1

@cython.locals(i=Py_ssize_t)
cdef bint _is_text(const unsigned char* data, Py_ssize_t at, Py_ssize_t size) except -1

@cython.locals(position=Py_ssize_t, headers_size=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t _write_size(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t prefix_size, Form form
) except -1

cdef bint _belongs(const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Group group) noexcept

@cython.locals(prefix=bytes, raw=bytes, topic=str, number=Py_ssize_t, group=Group)
cdef Py_ssize_t _find_group(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t prefix_size, list groups, dict latest, Form form
) except -2

@cython.locals(
    value_at=Py_ssize_t, size=Py_ssize_t, headers_at=Py_ssize_t, strings=Py_ssize_t, headers_size=Py_ssize_t
)
cdef Py_ssize_t _measure_run(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Group group, Form form
) except -1

@cython.locals(run=Py_ssize_t, _=Py_ssize_t, group=Group, size=Py_ssize_t, publishes=list)
cdef list _copied(
    const unsigned char* data, Py_ssize_t at, list groups, unsigned int* marks, Py_ssize_t runs, Form form,
    long long timestamp_us
)

@cython.locals(strings=Py_ssize_t, _=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t _copy_cell(const unsigned char* data, Py_ssize_t at, Group group) noexcept

@cython.locals(
    topic=bytes, topic_size=Py_ssize_t, ends_size=Py_ssize_t, ends_at=Py_ssize_t, values_at=Py_ssize_t,
    cell_ends_at=Py_ssize_t, size=Py_ssize_t, header=bytes, out=cython.p_uchar,
)
cdef _reserved(Group group, long long timestamp_us)

@cython.locals(a=cython.ulonglong, b=cython.ulonglong, c=cython.ulonglong, d=cython.ulonglong, word=cython.ulonglong)
cdef unsigned long long _u32(const unsigned char* data, Py_ssize_t at) noexcept

cdef void _put_u32_le(unsigned char* out, unsigned int word) noexcept
