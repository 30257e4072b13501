/* Sockets, clocks and histograms: everything the protocols share and nothing they speak. */
#define _GNU_SOURCE
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 512 * 1024, SETUP_TIMEOUT_S = 20 };

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(1);
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void conn_open(struct conn *c, const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int yes = 1;

    memset(c, 0, sizeof *c);
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
        die("%s is not an IPv4 address", host);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect to %s:%d: %s", host, port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    c->in_cap = READ_SIZE;
    c->in = malloc(c->in_cap);
    c->out_cap = READ_SIZE;
    c->out = malloc(c->out_cap);
    if (!c->in || !c->out)
        die("out of memory");
}

size_t conn_read(struct conn *c)
{
    if (c->in_start == c->in_end)
        c->in_start = c->in_end = 0;
    if (c->in_cap - c->in_end < READ_SIZE / 2) {
        memmove(c->in, c->in + c->in_start, conn_size(c));
        c->in_end -= c->in_start;
        c->in_start = 0;
        if (c->in_cap - c->in_end < READ_SIZE / 2) {
            c->in_cap *= 2;
            if (!(c->in = realloc(c->in, c->in_cap)))
                die("out of memory");
        }
    }
    size_t room = c->in_cap - c->in_end;
    ssize_t got = c->tls ? tls_read(c, c->in + c->in_end, room) : recv(c->fd, c->in + c->in_end, room, MSG_DONTWAIT);
    if (got > 0) {
        c->in_end += (size_t)got;
        return (size_t)got;
    }
    if (got == 0)
        die("the server closed the connection");
    if (errno != EAGAIN && errno != EINTR)
        die("read: %s", strerror(errno));
    return 0;
}

bool conn_flush(struct conn *c)
{
    while (c->out_start < c->out_end) {
        const uint8_t *from = c->out + c->out_start;
        size_t left = c->out_end - c->out_start;
        ssize_t put = c->tls ? tls_write(c, from, left) : send(c->fd, from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put < 0 && errno == EAGAIN)
            return false;
        if (put < 0 && errno != EINTR)
            die("write: %s", strerror(errno));
        if (put > 0)
            c->out_start += (size_t)put;
    }
    c->out_start = c->out_end = 0;
    return true;
}

void conn_wait(struct conn *c, uint64_t timeout_ns)
{
    struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (c->out_start < c->out_end ? POLLOUT : 0))};
    struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
    if (ppoll(&p, 1, &t, NULL) < 0 && errno != EINTR)
        die("poll: %s", strerror(errno));
}

void conn_need(struct conn *c, size_t size)
{
    uint64_t give_up = now_ns() + SETUP_TIMEOUT_S * 1000000000ull;
    while (!conn_flush(c) || conn_size(c) < size) {
        if (now_ns() > give_up)
            die("no answer during set-up");
        conn_wait(c, 100000000u);
        conn_read(c);
    }
}

uint8_t *conn_reserve(struct conn *c, size_t size)
{
    if (c->out_cap - c->out_end < size) {
        memmove(c->out, c->out + c->out_start, c->out_end - c->out_start);
        c->out_end -= c->out_start;
        c->out_start = 0;
        while (c->out_cap - c->out_end < size)
            c->out_cap *= 2;
        if (!(c->out = realloc(c->out, c->out_cap)))
            die("out of memory");
    }
    return c->out + c->out_end;
}

void conn_put(struct conn *c, const void *bytes, size_t size)
{
    memcpy(conn_reserve(c, size), bytes, size);
    c->out_end += size;
}

void conn_printf(struct conn *c, const char *format, ...)
{
    va_list args;
    uint8_t *into = conn_reserve(c, 4096);
    va_start(args, format);
    int size = vsnprintf((char *)into, 4096, format, args);
    va_end(args);
    if (size < 0 || size >= 4096)
        die("a request too long to print");
    c->out_end += (size_t)size;
}

/* A duration's bucket: its highest bit, then the seven bits below it. */
static unsigned bucket_of(uint64_t ns)
{
    if (ns < 128)
        return (unsigned)ns;
    unsigned shift = 56u - (unsigned)__builtin_clzll(ns);
    return (shift + 1) * 128 + (unsigned)((ns >> shift) & 127);
}

static uint64_t bucket_end(unsigned bucket)
{
    unsigned shift = bucket / 128;
    return shift == 0 ? bucket : (((uint64_t)(128 + bucket % 128) + 1) << (shift - 1)) - 1;
}

void histogram_add(struct histogram *h, uint64_t ns, uint64_t count)
{
    h->counts[bucket_of(ns)] += count;
    h->total += count;
    if (ns > h->max)
        h->max = ns;
}

double histogram_us(const struct histogram *h, double quantile)
{
    uint64_t wanted = (uint64_t)((double)h->total * quantile), seen = 0;
    for (unsigned i = 0; i < sizeof h->counts / sizeof *h->counts; i++)
        if ((seen += h->counts[i]) > wanted) {
            uint64_t end = bucket_end(i);
            return (double)(end < h->max ? end : h->max) / 1e3;
        }
    return (double)h->max / 1e3;
}
