"""The C types of blipmq.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef unsigned char PUBLISH
cdef Py_ssize_t _PART_AT, _TOPIC_AT, _NO_GROUP

cdef class Group:
    cdef str topic
    cdef bytes prefix
    cdef Py_ssize_t prefix_size
    cdef Py_ssize_t follower
    cdef bint superseded
    cdef Py_ssize_t count
    cdef Py_ssize_t values_size
    cdef list tags
    cdef list sizes
    cdef list values
    cdef unsigned char* tag_out
    cdef unsigned char* end_out
    cdef unsigned char* value_out
    cdef unsigned int value_end

@cython.locals(
    groups=list, latest=dict, number=Py_ssize_t, at=Py_ssize_t, runs=Py_ssize_t,
    length=Py_ssize_t, scratch=bytes, group=Group, marks=cython.p_uint, data="const unsigned char*",
)
cpdef tuple scan_publishes(
    const unsigned char[::1] buf, Py_ssize_t pos, Py_ssize_t end, long long timestamp_us
)

@cython.locals(least=Py_ssize_t, first=Py_ssize_t, length=Py_ssize_t)
cdef Py_ssize_t _measure_run(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Group group
) noexcept

cdef bint _belongs(const unsigned char* data, Py_ssize_t at, Py_ssize_t length, Group group) noexcept

@cython.locals(qos=cython.uint, topic_size=Py_ssize_t, prefix=bytes, raw=bytes, number=Py_ssize_t, group=Group)
cdef Py_ssize_t _find_group(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t length, list groups, dict latest
) except -2

cdef _joined(Group group, long long timestamp_us)

cdef bytes _batch_header(
    Py_ssize_t size, int qos, Py_ssize_t count, Py_ssize_t topic_size, long long timestamp_us,
    Py_ssize_t values_size
)

@cython.locals(
    run=Py_ssize_t, _=Py_ssize_t, group=Group, value_at=Py_ssize_t, frame_size=Py_ssize_t, publishes=list
)
cdef list _copied(
    const unsigned char* data, Py_ssize_t at, list groups, unsigned int* marks, Py_ssize_t runs,
    long long timestamp_us
)

@cython.locals(
    topic_size=Py_ssize_t, ends_at=Py_ssize_t, values_at=Py_ssize_t, size=Py_ssize_t, header=bytes,
    out=cython.p_uchar,
)
cdef _reserved(Group group, long long timestamp_us)

@cython.locals(
    topic_size=Py_ssize_t, ends_at=Py_ssize_t, values_at=Py_ssize_t, topic_at=Py_ssize_t,
    data="const unsigned char*", tag_in=cython.p_uchar, first=Py_ssize_t, last=Py_ssize_t, frames=bytes,
    out=cython.p_uchar, i=Py_ssize_t, final=Py_ssize_t,
)
cpdef bytes encode_deliveries(
    const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t index, Py_ssize_t count, int qos,
    unsigned long long first_tag, bytes tags
)

@cython.locals(a=cython.ulonglong, b=cython.ulonglong, c=cython.ulonglong, d=cython.ulonglong, word=cython.ulonglong)
cdef unsigned long long _u32(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(a=cython.uint, b=cython.uint, c=cython.uint, d=cython.uint, word=cython.uint)
cdef unsigned int _u32_le(const unsigned char* data, Py_ssize_t at) noexcept

cdef void _put_u32(unsigned char* out, unsigned int word) noexcept

cdef void _put_u32_le(unsigned char* out, unsigned int word) noexcept
