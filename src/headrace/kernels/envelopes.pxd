"""The C types of envelopes.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef unsigned int _TIMESTAMP_TAG, _METADATA_TAG, _KEY_TAG, _VALUE_TAG, _PAYLOAD_TAG
cdef Py_ssize_t _ENTRIES_MAX

cdef class Walk:
    cdef const unsigned char* data
    cdef Py_ssize_t at
    cdef Py_ssize_t size
    cdef Py_ssize_t keys_at[16]
    cdef Py_ssize_t keys_size[16]

@cython.locals(walk=Walk, row=Py_ssize_t, plain=bint)
cpdef mark_plain(const int[::1] ends, const unsigned char[::1] cells, unsigned char[::1] marks)

@cython.locals(seen=cython.uint, tag=cython.uint, bit=cython.uint, entries=Py_ssize_t)
cdef bint _is_plain(Walk walk, Py_ssize_t end) except -1

@cython.locals(after=Py_ssize_t, i=Py_ssize_t)
cdef bint _is_plain_entry(Walk walk, Py_ssize_t entries) except -1

@cython.locals(size=Py_ssize_t, shift=int, byte=Py_ssize_t)
cdef bint _sized(Walk walk, Py_ssize_t end) noexcept

@cython.locals(count=int, byte=cython.uint)
cdef bint _is_number(Walk walk, Py_ssize_t end) noexcept

cdef bint _text(Walk walk) except -1

cdef bint _same(Walk walk, Py_ssize_t first, Py_ssize_t second) noexcept
