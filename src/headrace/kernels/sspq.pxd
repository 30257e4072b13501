"""The C types of sspq.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef Py_ssize_t _HEAD, _PART_AT, _TOPIC_AT
cdef unsigned char _MAGIC_FIRST, _MAGIC_SECOND, _SEND
cdef int _FOR_EVER

@cython.locals(
    name=bytes, publishes=list, at=Py_ssize_t, first=Py_ssize_t, count=Py_ssize_t, values_size=Py_ssize_t,
    size=Py_ssize_t, retries=cython.int, attempts=cython.int, data="const unsigned char*",
)
cpdef tuple scan_sends(
    const unsigned char[::1] buf, Py_ssize_t pos, Py_ssize_t end, str topic, int forced, Py_ssize_t payload_max,
    long long timestamp_us
)

@cython.locals(size=Py_ssize_t)
cdef bint _is_send(const unsigned char* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t payload_max) noexcept

cdef int _attempts(int retries)

@cython.locals(
    ends_at=Py_ssize_t, values_at=Py_ssize_t, size=Py_ssize_t, header=bytes, out=cython.p_uchar,
    end_out=cython.p_uchar, value_out=cython.p_uchar, value_end=Py_ssize_t, value_size=Py_ssize_t, _=Py_ssize_t,
)
cdef _copied(
    const unsigned char* data, Py_ssize_t at, Py_ssize_t count, Py_ssize_t values_size, bytes topic, int attempts,
    long long timestamp_us
)

cdef bytes _batch_header(
    Py_ssize_t size, Py_ssize_t count, Py_ssize_t topic_size, int attempts, long long timestamp_us,
    Py_ssize_t values_size
)

@cython.locals(a=cython.ulonglong, b=cython.ulonglong, c=cython.ulonglong, d=cython.ulonglong, word=cython.ulonglong)
cdef unsigned long long _u32(const unsigned char* data, Py_ssize_t at) noexcept

cdef void _put_u32_le(unsigned char* out, unsigned int word) noexcept
