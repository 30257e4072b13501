"""The C types of blipmq_exchange.py."""

cimport cython

cdef Py_ssize_t _FRAME_SIZE
cdef bytes _ACK_HEAD, _POLL_HEAD, _NOBODY

@cython.locals(most=Py_ssize_t, named=bytes)
cpdef tuple scan_exchange(const unsigned char[::1] buf, Py_ssize_t pos, Py_ssize_t end)

@cython.locals(
    ranges=list, first=cython.ulonglong, acked=cython.ulonglong, poll_size=Py_ssize_t, polls=bytes,
    poll_out=cython.p_uchar, poll_head=cython.p_char, ack_head=cython.p_char, name=cython.p_char, at=Py_ssize_t,
    _=Py_ssize_t, tag=cython.ulonglong,
)
cdef tuple _scan_run(const unsigned char* data, Py_ssize_t pos, Py_ssize_t most, bytes named)

@cython.locals(word=cython.ulonglong, i=cython.int)
cdef unsigned long long _u64(const unsigned char* data, Py_ssize_t at) noexcept
