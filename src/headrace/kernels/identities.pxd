"""The C types of identities.py: what is declared here is C when compiled, and not seen when interpreted."""

cimport cython

cdef Py_ssize_t _PLACES_MIN, _UUID_SIZE
cdef unsigned int _DASH
cdef unsigned long long _LOW_NIBBLES, _ONES, _SIXES, _ZERO_DIGITS, _EVEN_NIBBLES, _HALVES, _QUARTER
cdef Py_ssize_t _AHEAD
cdef long long _GONE
cdef unsigned long long _TIME_MAX

cdef class Recent:
    cdef public Py_ssize_t first, last, count, places
    cdef public unsigned long long odd_high, odd_low, touched
    cdef public int shift
    cdef public unsigned long long[::1] words
    cdef public long long[::1] times
    cdef public unsigned int[::1] slots

cdef const unsigned char* _pointer(const unsigned char[::1] buf) noexcept

@cython.locals(data="const unsigned char*", cells_at=Py_ssize_t)
cpdef object digest_ids(const unsigned char[::1] buf, Py_ssize_t ends_at, Py_ssize_t count)

@cython.locals(i=Py_ssize_t, at=Py_ssize_t, size=Py_ssize_t, digest=bytes)
cdef object _digest_all(
    const unsigned char* data, Py_ssize_t ends_at, Py_ssize_t cells_at, Py_ssize_t count, unsigned long long[::1] words
)

cdef Py_ssize_t _u32(const unsigned char* data, Py_ssize_t at) noexcept

@cython.locals(high=cython.ulonglong, low=cython.ulonglong, bad=int)
cdef bint _read_uuid(const unsigned char* data, Py_ssize_t at, unsigned long long[::1] words, Py_ssize_t place) except -1

@cython.locals(text=cython.ulonglong, number=cython.ulonglong)
cdef unsigned long long _nibbles(const unsigned char* data, Py_ssize_t first, Py_ssize_t second, int* bad) noexcept

@cython.locals(touched=cython.ulonglong, i=Py_ssize_t)
cdef void _warm(Recent recent, const unsigned long long[::1] words, Py_ssize_t count) noexcept

@cython.locals(
    count=Py_ssize_t, i=Py_ssize_t, slot=Py_ssize_t, high=cython.ulonglong, low=cython.ulonglong
)
cpdef object admit(Recent recent, const unsigned long long[::1] words, long long now)

@cython.locals(touched=cython.ulonglong, number=Py_ssize_t, place=Py_ssize_t)
cdef void _warm_ring(Recent recent, Py_ssize_t first) noexcept

@cython.locals(i=Py_ssize_t, slot=Py_ssize_t, high=cython.ulonglong, low=cython.ulonglong)
cpdef take_back(Recent recent, const unsigned long long[::1] words)

@cython.locals(forgotten=Py_ssize_t, place=Py_ssize_t, time=cython.longlong)
cpdef Py_ssize_t expire(Recent recent, long long until, Py_ssize_t at_least) except -1

@cython.locals(number=Py_ssize_t, time=cython.longlong)
cpdef long long newest(Recent recent) noexcept

@cython.locals(at=Py_ssize_t, number=Py_ssize_t, place=Py_ssize_t, out="unsigned long long[::1]")
cpdef bytes written(Recent recent)

@cython.locals(
    count=Py_ssize_t, i=Py_ssize_t, slot=Py_ssize_t, high=cython.ulonglong, low=cython.ulonglong,
    words="unsigned long long[::1]",
)
cpdef Recent read(bytes data)

@cython.locals(
    held=Py_ssize_t, places=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t, number=Py_ssize_t, place=Py_ssize_t,
    slot=Py_ssize_t, mask=Py_ssize_t, words="unsigned long long[::1]", times="long long[::1]",
)
cdef object _make_room(Recent recent, Py_ssize_t count)

@cython.locals(mixed=cython.ulonglong)
cdef Py_ssize_t _home(Recent recent, unsigned long long high, unsigned long long low) noexcept

@cython.locals(
    mask=Py_ssize_t, slot=Py_ssize_t, place=Py_ssize_t, words="unsigned long long[::1]", slots="unsigned int[::1]"
)
cdef Py_ssize_t _find(Recent recent, unsigned long long high, unsigned long long low) noexcept

@cython.locals(place=Py_ssize_t)
cdef void _append(
    Recent recent, Py_ssize_t slot, unsigned long long high, unsigned long long low, long long time
) noexcept

@cython.locals(
    mask=Py_ssize_t, following=Py_ssize_t, place=Py_ssize_t, home=Py_ssize_t, words="unsigned long long[::1]",
    slots="unsigned int[::1]",
)
cdef void _forget(Recent recent, Py_ssize_t slot) noexcept
