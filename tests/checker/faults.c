/* Faults of disk and clock, done to a process from outside: loaded before the C library's own functions, ruled by a
 * file that both sides map. Only files below one directory are touched, so that Python itself goes on reading its own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct rule {
    volatile int32_t write_errno;  /* what writes, truncations and allocations fail with; 0: they do not */
    volatile int32_t sync_errno;   /* what syncs fail with, those within a write included */
    volatile int32_t read_errno;
    volatile int32_t delay_us;     /* before each write and sync */
    volatile int64_t clock_us;     /* added to the wall clock */
    volatile uint64_t failed;      /* how many calls were made to fail */
};

enum { FILES_MAX = 1 << 16 };

static struct rule none, *rule = &none;
static const char *below;
static size_t below_size;
static unsigned char marked[FILES_MAX];

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("HEADRACE_FAULT_RULE");
    below = getenv("HEADRACE_FAULT_BELOW");
    if (!path || !below) {
        return;
    }
    below_size = strlen(below);
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int file = real_open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0) {
        void *found = mmap(NULL, sizeof(struct rule), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (found != MAP_FAILED) {
            rule = found;
        }
        close(file);
    }
}

static int is_ours(int file) {
    return file >= 0 && file < FILES_MAX && marked[file];
}

static int noted(int file, const char *path) {
    if (file >= 0 && file < FILES_MAX) {
        marked[file] = below && path && !strncmp(path, below, below_size);
    }
    return file;
}

static int fails(int32_t cause) {
    if (!cause) {
        return 0;
    }
    __sync_fetch_and_add(&rule->failed, 1);
    errno = cause;
    return 1;
}

static void dawdle(void) {
    if (rule->delay_us) {
        struct timespec pause = {rule->delay_us / 1000000, rule->delay_us % 1000000 * 1000L};
        nanosleep(&pause, NULL);
    }
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) { \
        real = (__typeof__(&name)) dlsym(RTLD_NEXT, #name); \
    }

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name) \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        return noted(real(path, flags, mode), path); \
    }

#define OPENS_AT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        REAL(name) \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        return noted(real(directory, path, flags, mode), path); \
    }

#define WRITES(name, parameters, arguments) \
    ssize_t name parameters { \
        REAL(name) \
        if (is_ours(file)) { \
            dawdle(); \
            if (fails(rule->write_errno)) { \
                return -1; \
            } \
        } \
        return real arguments; \
    }

#define WRITES_SYNCED(name) \
    ssize_t name(int file, const struct iovec *vectors, int count, off_t position, int flags) { \
        REAL(name) \
        if (is_ours(file)) { \
            dawdle(); \
            if (fails(rule->write_errno)) { \
                return -1; \
            } \
            if (flags && rule->sync_errno) { \
                real(file, vectors, count, position, 0); \
                return fails(rule->sync_errno) ? -1 : 0; \
            } \
        } \
        return real(file, vectors, count, position, flags); \
    }

#define SYNCS(name) \
    int name(int file) { \
        REAL(name) \
        if (is_ours(file)) { \
            dawdle(); \
            if (fails(rule->sync_errno)) { \
                return -1; \
            } \
        } \
        return real(file); \
    }

#define READS(name, parameters, arguments) \
    ssize_t name parameters { \
        REAL(name) \
        if (is_ours(file) && fails(rule->read_errno)) { \
            return -1; \
        } \
        return real arguments; \
    }

#define SIZES(name, parameters, arguments, failure) \
    int name parameters { \
        REAL(name) \
        if (is_ours(file) && fails(rule->write_errno)) { \
            return failure; \
        } \
        return real arguments; \
    }

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

int close(int file) {
    REAL(close)
    if (file >= 0 && file < FILES_MAX) {
        marked[file] = 0;
    }
    return real(file);
}

WRITES(write, (int file, const void *data, size_t size), (file, data, size))
WRITES(pwrite, (int file, const void *data, size_t size, off_t position), (file, data, size, position))
WRITES(pwrite64, (int file, const void *data, size_t size, off64_t position), (file, data, size, position))
WRITES(writev, (int file, const struct iovec *vectors, int count), (file, vectors, count))
WRITES(pwritev, (int file, const struct iovec *vectors, int count, off_t position), (file, vectors, count, position))
WRITES(pwritev64, (int file, const struct iovec *vectors, int count, off64_t position), (file, vectors, count, position))
WRITES_SYNCED(pwritev2)
WRITES_SYNCED(pwritev64v2)
SYNCS(fsync)
SYNCS(fdatasync)
READS(pread, (int file, void *data, size_t size, off_t position), (file, data, size, position))
READS(pread64, (int file, void *data, size_t size, off64_t position), (file, data, size, position))
READS(preadv, (int file, const struct iovec *vectors, int count, off_t position), (file, vectors, count, position))
READS(preadv64, (int file, const struct iovec *vectors, int count, off64_t position), (file, vectors, count, position))
SIZES(ftruncate, (int file, off_t size), (file, size), -1)
SIZES(ftruncate64, (int file, off64_t size), (file, size), -1)
SIZES(posix_fallocate, (int file, off_t position, off_t size), (file, position, size), errno)
SIZES(posix_fallocate64, (int file, off64_t position, off64_t size), (file, position, size), errno)

int rename(const char *source, const char *target) {
    REAL(rename)
    if (below && !strncmp(target, below, below_size) && fails(rule->write_errno)) {
        return -1;
    }
    return real(source, target);
}

int clock_gettime(clockid_t which, struct timespec *time) {
    REAL(clock_gettime)
    int result = real(which, time);
    if (!result && which == CLOCK_REALTIME && rule->clock_us) {
        int64_t moved = time->tv_sec * 1000000000LL + time->tv_nsec + rule->clock_us * 1000LL;
        time->tv_sec = moved / 1000000000LL;
        time->tv_nsec = moved % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    REAL(gettimeofday)
    int result = real(time, zone);
    if (!result && rule->clock_us) {
        int64_t moved = time->tv_sec * 1000000LL + time->tv_usec + rule->clock_us;
        time->tv_sec = moved / 1000000LL;
        time->tv_usec = moved % 1000000LL;
    }
    return result;
}
