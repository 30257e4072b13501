"""The C types of grpcq.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef Py_ssize_t _UUID_SIZE, _MARKS, _KEY_SIZE_MAX, _TOPIC_KEY_SIZE, _ACTION_KEY_SIZE, _ORIGINATOR_KEY_SIZE
cdef unsigned int _VARINT, _FIXED64, _BYTES, _FIXED32
cdef unsigned int _ORIGINATOR, _TOPIC, _ACTION, _PAYLOAD, _MESSAGE_ID, _TIMESTAMP, _METADATA
cdef bytes _ID_HEAD, _TOPIC_KEY, _ACTION_KEY, _ORIGINATOR_KEY
cdef int _FINE, _NOT_PROTOBUF, _NOT_UTF8, _TOPIC_EMPTY, _TOPIC_NOT_TRIMMED, _ACTION_EMPTY, _ACTION_NOT_TRIMMED
cdef int _PAYLOAD_TOO_LARGE, _KEY_TOO_LONG, _TOO_MANY, _TOPIC_CHARACTER, _ACTION_CHARACTER

cdef class Fields:
    cdef const unsigned char* data
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef unsigned int number
    cdef unsigned int kind
    cdef unsigned long long value
    cdef Py_ssize_t body
    cdef Py_ssize_t size

cdef class Envelope:
    cdef Py_ssize_t originator_at, originator_size, topic_at, topic_size, action_at, action_size
    cdef Py_ssize_t payload_size, id_at, id_size, metadata_size
    cdef bint timestamp

cdef class Scan:
    cdef public bytes queue
    cdef public Py_ssize_t count, failed, failed_at, failed_size, ids_missing, stamps_missing, values_size, ids_size, headers_size
    cdef public int reason
    cdef public object marks

cdef class Cells:
    cdef unsigned char* out
    cdef Py_ssize_t ends_at, start, at

@cython.locals(
    scan=Scan, fields=Fields, inner=Fields, envelope=Envelope, count=Py_ssize_t, reason=int, marks="long long[::1]"
)
cpdef Scan scan_publish(const unsigned char[::1] buf, Py_ssize_t payload_max, Py_ssize_t count_max)

@cython.locals(fields=Fields)
cdef Fields _walk(const unsigned char[::1] buf, Py_ssize_t at, Py_ssize_t end)

@cython.locals(size=cython.ulonglong)
cdef bint _next_field(Fields fields) noexcept

@cython.locals(at=Py_ssize_t, word=cython.ulonglong, byte=cython.ulonglong, shift=int)
cdef bint _varint(Fields fields) noexcept

@cython.locals(reason=int)
cdef int _read_envelope(Fields fields, Envelope found, Py_ssize_t payload_max) except -1

cdef void _found_text(Fields fields, Envelope found) noexcept

@cython.locals(after=Py_ssize_t, end=Py_ssize_t, key_size=Py_ssize_t, value_size=Py_ssize_t)
cdef int _read_entry(Fields fields, Envelope found) except -1

@cython.locals(i=Py_ssize_t)
cdef bint _is_utf8(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(byte=cython.uint, letter=cython.bint)
cdef bint _is_name(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(text=str)
cdef bint _is_trimmed(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(at=Py_ssize_t)
cdef void _note(Scan scan, long long[::1] marks, Fields fields, Envelope found) noexcept

@cython.locals(
    fields=Fields, data="const unsigned char*", marks="long long[::1]", values=Cells, headers=Cells, ids=Cells,
    used=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t,
)
cpdef fill_part(
    const unsigned char[::1] buf, Scan scan, part, Py_ssize_t values_at, Py_ssize_t headers_at, Py_ssize_t ids_at,
    bytes stamp, bytes fresh
)

@cython.locals(
    after=Py_ssize_t, end=Py_ssize_t, key_at=Py_ssize_t, key_size=Py_ssize_t, value_at=Py_ssize_t,
    value_size=Py_ssize_t,
)
cdef void _metadata_headers(Cells headers, Fields fields) noexcept

@cython.locals(view="unsigned char[::1]", cells=Cells)
cdef Cells _cells(part, Py_ssize_t ends_at, Py_ssize_t count)

cdef void _copy(Cells cells, const unsigned char* data, Py_ssize_t at, Py_ssize_t size) noexcept

cdef void _close(Cells cells, Py_ssize_t index) noexcept

cdef void _header(
    Cells cells, const unsigned char* key, Py_ssize_t key_at, Py_ssize_t key_size,
    const unsigned char* value, Py_ssize_t value_at, Py_ssize_t value_size
) noexcept

cdef void _put_u32(unsigned char* out, Py_ssize_t at, unsigned int word) noexcept

cdef Py_ssize_t _padded(Py_ssize_t size) noexcept
