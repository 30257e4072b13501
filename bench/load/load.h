/*
 * One load shape, spoken in several wire protocols.
 *
 * main.c knows the shapes (who publishes, who consumes, how fast, until when) and no protocol.
 * blipmq.c, sspq.c, fujin.c, redis.c and nats.c each know one protocol and no shape. net.c knows sockets and clocks,
 * tls.c what some of them are wrapped in.
 *
 * Every message carries its own number and the time it was due to be sent in its first sixteen bytes, so
 * the consumer can prove order and completeness and measure latency without asking anybody.
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

enum { TOPICS_MAX = 1000, CONSUMERS_MAX = 64, FENCES_MAX = 8192, SIZE_MIN = 16 };

/* ---- net.c: sockets, clocks, counting ------------------------------------------------------------------ */

/* A non-blocking connection with what arrived and is not yet understood, and what is not yet sent. */
struct conn {
    int fd;
    uint8_t *in;
    size_t in_start, in_end, in_cap;
    uint8_t *out;
    size_t out_start, out_end, out_cap;
    void *tls; /* tls.c's own; NULL: bytes as they are */
};

void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
uint64_t now_ns(void);

void conn_open(struct conn *c, const char *host, int port);
/* Reads once; the number of bytes that came, 0 if none are there now. A closed peer ends the program. */
size_t conn_read(struct conn *c);
/* Writes as much as the socket takes; true when nothing is left. */
bool conn_flush(struct conn *c);
/* Waits until the connection has something to read, can be written (if something is left), or time is over. */
void conn_wait(struct conn *c, uint64_t timeout_ns);
/* Flushes, then waits until at least `size` bytes are there to read. For set-up only. */
void conn_need(struct conn *c, size_t size);
uint8_t *conn_reserve(struct conn *c, size_t size);
void conn_put(struct conn *c, const void *bytes, size_t size);
void conn_printf(struct conn *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* tls.c: shakes hands on a connection just opened; from then on everything on it is TLS. */
void conn_secure(struct conn *c);
ssize_t tls_read(struct conn *c, uint8_t *into, size_t room);
ssize_t tls_write(struct conn *c, const uint8_t *bytes, size_t size);

static inline uint8_t *conn_data(struct conn *c) { return c->in + c->in_start; }
static inline size_t conn_size(const struct conn *c) { return c->in_end - c->in_start; }

/* Counts durations in buckets less than 1 % wide. */
struct histogram {
    uint64_t counts[64 * 128];
    uint64_t total, max;
};

void histogram_add(struct histogram *h, uint64_t ns, uint64_t count);
double histogram_us(const struct histogram *h, double quantile);

static inline void put_be16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v), memcpy(p, &v, 2); }
static inline void put_be32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v), memcpy(p, &v, 4); }
static inline void put_be64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v), memcpy(p, &v, 8); }
static inline uint16_t get_be16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t get_be32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t get_be64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }

/* ---- main.c: shapes ------------------------------------------------------------------------------------ */

struct options {
    const char *target, *scenario, *host, *key;
    int port, metrics_port;
    unsigned size, qos, topics, fanout;
    double seconds;
    uint64_t count;    /* stop publishing after so many messages; 0: after `seconds` */
    uint64_t rate;     /* messages a second, sent in bursts each millisecond; 0: as fast as it goes */
    uint64_t backlog;  /* messages to store before the consumers start */
    uint64_t stored;   /* messages a recovered broker holds for us already */
    uint64_t window;   /* bytes sent and not yet confirmed */
    uint64_t lead;     /* messages the publisher may be ahead of the slowest consumer */
    unsigned batch;    /* messages a consumer asks for at once */
    unsigned poll_us;  /* pause after an empty answer */
    bool publishing;   /* keep publishing while the backlog drains */
    bool spin;         /* consumers never sleep: waking up can take longer than the broker does */
};

/* A batch of messages built once: only numbers and times are patched before each send. */
struct publisher {
    struct conn conn;
    const struct options *options;
    unsigned count;                      /* messages in the batch */
    size_t stride, payload_at, number_at; /* number_at: where the frame wants an id; 0 if nowhere */
    uint64_t sent, confirmed;
    struct { uint64_t upto, since; } fences[FENCES_MAX];
    unsigned fence_first, fence_last;
    struct histogram durable;            /* from due time to the confirmation */
};

struct consumer {
    struct conn conn;
    const struct options *options;
    unsigned number;              /* which of the fan-out */
    uint64_t next[TOPICS_MAX];    /* message number expected next on each topic */
    uint64_t received, redelivered, lost;
    uint64_t now;                 /* when the bytes now being understood arrived */
    struct histogram *latency;
    uint64_t measure_from;        /* messages due earlier are warm-up */
    bool settling, settled;       /* told to settle; everything acked is known to be so */
    void *state;                  /* the protocol's own */
};

/* All messages up to number `upto` are as safe as the target promises. */
void publisher_confirmed(struct publisher *p, uint64_t upto);
/* The same for protocols whose confirmations carry no number: the oldest fence. */
void publisher_fence_passed(struct publisher *p);

void topic_name(char *into, unsigned topic); /* "bench.000", always nine characters */
enum { TOPIC_SIZE = 9 };

/* Checks one message's number against what must come next and records its latency; false if it came before. */
static inline bool deliver(struct consumer *c, unsigned topic, const uint8_t *payload, size_t size)
{
    uint64_t number, due;
    if (size != c->options->size || topic >= c->options->topics)
        die("a message of topic %u with %zu bytes was never published", topic, size);
    memcpy(&number, payload, 8);
    memcpy(&due, payload + 8, 8);
    if (number < c->next[topic]) {
        c->redelivered++;
        return false;
    }
    c->lost += (number - c->next[topic]) / c->options->topics;
    c->next[topic] = number + c->options->topics;
    c->received++;
    if (c->latency && due >= c->measure_from)
        histogram_add(c->latency, c->now > due ? c->now - due : 0, 1);
    return true;
}

/* ---- blipmq.c, sspq.c, fujin.c, redis.c, nats.c: one protocol each ------------------------------------- */

struct protocol {
    const char *name;
    /* Makes streams and groups before anybody connects; may be NULL. */
    void (*prepare)(const struct options *o);
    /* Writes one message's frame with an empty payload; says its size and where payload and id are. */
    size_t (*frame)(const struct options *o, unsigned topic, uint8_t *into, size_t *payload_at, size_t *number_at);
    void (*open_publisher)(struct publisher *p);
    /* Writes what must follow a batch so that the target confirms it; its size, 0 if replies come anyway. */
    size_t (*fence)(const struct publisher *p, uint64_t upto, uint8_t *into);
    void (*confirm)(struct publisher *p);
    /* Asks elsewhere what is safe, where the protocol itself never says so; `last` when nothing more is sent. NULL else. */
    void (*inquire)(struct publisher *p, bool last);
    void (*open_consumer)(struct consumer *c);
    /* Understands what arrived, delivers messages and queues their acks. */
    void (*consume)(struct consumer *c);
    /* Queues requests for more messages; when settling, whatever proves that the acks arrived. */
    void (*ask)(struct consumer *c);
};

extern const struct protocol blipmq, sspq, fujin_tcp, redis, nats, jetstream;

#endif
