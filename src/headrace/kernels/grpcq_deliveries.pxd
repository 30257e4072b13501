"""The C types of grpcq_deliveries.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef Py_ssize_t _HEADER_SIZE, _RECEIPT_SIZE, _OFFSET_ID_SIZE
cdef unsigned int _DELIVERY_TAG, _MESSAGE_TAG, _RECEIPT_TAG, _ATTEMPT_TAG, _OFFSET_TAG, _PAYLOAD_TAG, _ID_TAG
cdef bytes _OFFSET_ID

cdef class Output:
    cdef unsigned char* out
    cdef Py_ssize_t at

@cython.locals(
    data="const unsigned char*", topic_size=Py_ssize_t, ends_at=Py_ssize_t, values_at=Py_ssize_t, first=Py_ssize_t,
    last=Py_ssize_t, final=Py_ssize_t, output=Output, receipt=bytes, framing=Py_ssize_t, size=Py_ssize_t, i=Py_ssize_t,
)
cpdef bytes encode_deliveries(
    const unsigned char[::1] buffer, Py_ssize_t start, Py_ssize_t index, Py_ssize_t count, unsigned long long base,
    unsigned int subscription, unsigned long long delivery, unsigned int attempt, bytes prefix, bytes suffix
)

cdef Py_ssize_t _message_size(Py_ssize_t size, Py_ssize_t framing, unsigned long long offset) noexcept

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _body_size(
    Py_ssize_t message_size, unsigned long long offset, Py_ssize_t receipt_size, unsigned int attempt
) noexcept

@cython.locals(body_size=Py_ssize_t)
cdef Py_ssize_t _delivery_size(
    Py_ssize_t size, Py_ssize_t framing, unsigned long long offset, Py_ssize_t receipt_size, unsigned int attempt
) noexcept

@cython.locals(prefix_size=Py_ssize_t, message_size=Py_ssize_t, body_size=Py_ssize_t)
cdef int _put_delivery(
    Output output, const unsigned char* data, Py_ssize_t at, Py_ssize_t size, unsigned long long offset, bytes receipt,
    unsigned long long delivery, unsigned int attempt, bytes prefix, bytes suffix
) except -1

@cython.locals(
    groups=list, open_count=Py_ssize_t, open_subscription=cython.uint, open_attempt=cython.uint,
    open_first=cython.ulonglong, data="const unsigned char*", i=Py_ssize_t, subscription=cython.uint,
    attempt=cython.uint, delivery=cython.ulonglong,
)
cpdef list group_receipts(bytes receipts)

cdef void _bytes(Output output, const unsigned char* data, Py_ssize_t at, Py_ssize_t size) noexcept

cdef void _number(Output output, unsigned long long number) noexcept

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _number_size(unsigned long long number) noexcept

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _digits(unsigned long long number) noexcept

@cython.locals(size=Py_ssize_t, place=Py_ssize_t)
cdef void _decimal(Output output, unsigned long long number) noexcept

@cython.locals(shift=int)
cdef void _u64_out(Output output, unsigned long long number) noexcept

@cython.locals(a=cython.uint, b=cython.uint, c=cython.uint, d=cython.uint, word=cython.uint)
cdef unsigned int _u32(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(a=cython.uint, b=cython.uint, c=cython.uint, d=cython.uint, word=cython.uint)
cdef unsigned int _u32_be(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(high=cython.ulonglong, low=cython.ulonglong, word=cython.ulonglong)
cdef unsigned long long _u64_be(const unsigned char* data, Py_ssize_t at) noexcept
