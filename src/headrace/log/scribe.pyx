# cython: language_level=3
"""A thread that writes and syncs without ever asking for the interpreter's lock.

The event loop gives it one order at a time and is told by a descriptor when it is done, so that neither of them waits
for the other to let go of the lock: on few cores that costs as much as the disk does. Only built where the kernels
are; without it the same write is done by a thread of Python.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint64_t
from posix.types cimport off_t
from posix.unistd cimport read, write

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev2(int fd, const iovec *vectors, int count, off_t position, int flags)

cdef enum:
    BUFFERS_MAX = 1024

cdef uint64_t WRITE = 1
cdef uint64_t STOP = 1 << 32


cdef class Scribe:
    """Writes what it is ordered to, one order at a time."""

    cdef readonly int done
    cdef int _orders
    cdef int _fd
    cdef int _flags
    cdef int _count
    cdef int _cause
    cdef off_t _position
    cdef iovec _vectors[BUFFERS_MAX]
    cdef Py_buffer _views[BUFFERS_MAX]

    def __cinit__(self):
        self._count = 0
        self._orders = os.eventfd(0, os.EFD_CLOEXEC)
        self.done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def order(self, int fd, buffers, off_t position, int flags):
        """Write the buffers back to back; `done` becomes readable afterwards, and `finish` is to be called."""
        assert not self._count, "one order at a time"
        assert len(buffers) <= BUFFERS_MAX
        for buffer in buffers:
            PyObject_GetBuffer(buffer, &self._views[self._count], PyBUF_SIMPLE)
            self._vectors[self._count].iov_base = self._views[self._count].buf
            self._vectors[self._count].iov_len = <size_t> self._views[self._count].len
            self._count += 1
        self._fd = fd
        self._flags = flags
        self._position = position
        write(self._orders, &WRITE, sizeof(WRITE))

    def finish(self):
        """Take in the outcome of an order that is done. Raises OSError when it failed."""
        os.eventfd_read(self.done)
        for index in range(self._count):
            PyBuffer_Release(&self._views[index])
        self._count = 0
        if self._cause:
            raise OSError(self._cause, os.strerror(self._cause))

    def work(self):
        """Carry out orders until `stop`. For a thread of its own."""
        cdef uint64_t number
        with nogil:
            while True:
                if read(self._orders, &number, sizeof(number)) < 0:
                    if errno == EINTR:
                        continue
                    break
                if number >= STOP:
                    break
                self._carry_out()
                number = 1
                write(self.done, &number, sizeof(number))

    def stop(self):
        """End the thread; an order given before is still carried out."""
        write(self._orders, &STOP, sizeof(STOP))

    def close(self):
        """Give the descriptors back once the thread has ended."""
        os.close(self._orders)
        os.close(self.done)

    cdef void _carry_out(self) noexcept nogil:
        cdef int first = 0
        cdef ssize_t written
        cdef off_t position = self._position
        self._cause = 0
        while first < self._count:
            written = pwritev2(self._fd, &self._vectors[first], self._count - first, position, self._flags)
            if written < 0:
                if errno == EINTR:
                    continue
                self._cause = errno
                return
            position += written
            while first < self._count and <size_t> written >= self._vectors[first].iov_len:
                written -= <ssize_t> self._vectors[first].iov_len
                first += 1
            if first < self._count:
                self._vectors[first].iov_base = <char *> self._vectors[first].iov_base + written
                self._vectors[first].iov_len -= <size_t> written
