/*
 * SSPQ from its protocol document alone, sharing no code with the broker.
 *
 * The protocol confirms no SEND, so the publisher asks aside: the broker's /metrics count a message once it is as
 * durable as the sync policy promises. It asks every few milliseconds, and at the end without a pause, so a run ends at
 * most one answer too late.
 *
 * A connection holds one message at a time. A consumer sends the CONFIRM of one and the RECEIVE of the next in one write
 * and waits: one round trip a message. Nothing confirms a CONFIRM; the last one counts when it is written.
 */
#define _GNU_SOURCE
#include "load.h"

#include <stdlib.h>

enum { SEND = 0x5e, RECEIVE = 0xec, CONFIRM = 0xc0, NO_RECEIVE = 0x0e };
enum { HEADER = 8, FOR_EVER = 255 };
static const uint64_t PAUSE_NS = 5 * 1000 * 1000;
static const char METRIC[] = "\nheadrace_messages_published_total ";

static struct {
    struct conn conn;
    bool asked;
    uint64_t ask_at, before; /* before: messages counted before the first of ours */
} metrics;

static uint8_t *put_header(uint8_t *p, unsigned type, unsigned retries, size_t payload)
{
    put_be16(p, 0x5599);
    p[2] = (uint8_t)type;
    p[3] = (uint8_t)retries;
    put_be32(p + 4, (uint32_t)payload);
    return p + HEADER;
}

static size_t frame(const struct options *o, unsigned topic, uint8_t *into, size_t *payload_at, size_t *number_at)
{
    if (topic)
        die("SSPQ has one queue");
    put_header(into, SEND, FOR_EVER, o->size);
    *payload_at = HEADER;
    *number_at = 0;
    return HEADER + o->size;
}

static void ask_metrics(void)
{
    conn_printf(&metrics.conn, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    metrics.asked = true;
}

/* Takes a whole answer off the connection and says how many messages it counts; false while it is not all there. */
static bool read_metrics(uint64_t *published)
{
    struct conn *c = &metrics.conn;
    conn_flush(c);
    conn_read(c);
    const char *data = (const char *)conn_data(c), *end = memmem(data, conn_size(c), "\r\n\r\n", 4);
    if (!end)
        return false;
    const char *length = memmem(data, (size_t)(end - data), "content-length: ", 16);
    if (!length || strncmp(data, "HTTP/1.1 200", 12) != 0)
        die("/metrics answered %.*s", (int)(end - data), data);
    size_t size = (size_t)(end + 4 - data) + strtoul(length + 16, NULL, 10);
    if (conn_size(c) < size)
        return false;
    const char *metric = memmem(data, size, METRIC, sizeof METRIC - 1);
    if (!metric)
        die("/metrics does not say how many messages were published");
    *published = (uint64_t)strtod(metric + sizeof METRIC - 1, NULL);
    c->in_start += size;
    metrics.asked = false;
    return true;
}

static void open_publisher(struct publisher *p)
{
    const struct options *o = p->options;
    if (!o->metrics_port)
        die("SSPQ confirms nothing: --metrics-port is needed");
    conn_open(&p->conn, o->host, o->port);
    conn_open(&metrics.conn, o->host, o->metrics_port);
    ask_metrics();
    while (!read_metrics(&metrics.before))
        conn_wait(&metrics.conn, 100000000u);
}

static size_t fence(const struct publisher *p, uint64_t upto, uint8_t *into)
{
    (void)p, (void)upto, (void)into;
    return 0;
}

static void confirm(struct publisher *p)
{
    die("the broker sent %zu bytes to a publisher", conn_size(&p->conn));
}

static void inquire(struct publisher *p, bool last)
{
    uint64_t published, now = now_ns();
    if (metrics.asked) {
        if (read_metrics(&published) && published - metrics.before > p->confirmed)
            publisher_confirmed(p, published - metrics.before);
        metrics.ask_at = last ? 0 : now + PAUSE_NS;
    } else if (now >= metrics.ask_at) {
        ask_metrics();
        conn_flush(&metrics.conn);
    }
}

static void open_consumer(struct consumer *c)
{
    if (c->options->topics > 1 || c->options->fanout > 1)
        die("SSPQ has one queue, and one message goes to one consumer");
    conn_open(&c->conn, c->options->host, c->options->port);
}

static void put_request(struct conn *c, unsigned type)
{
    put_header(conn_reserve(c, HEADER), type, 0, 0);
    c->out_end += HEADER;
}

/* One message at most is outstanding, so what arrived is at most one packet. */
static void consume(struct consumer *c)
{
    const uint8_t *packet = conn_data(&c->conn);
    if (conn_size(&c->conn) < HEADER || conn_size(&c->conn) < HEADER + get_be32(packet + 4))
        return;
    if (get_be16(packet) != 0x5599 || packet[2] != SEND)
        die(packet[2] == NO_RECEIVE ? "NO_RECEIVE" : "not a SEND");
    deliver(c, 0, packet + HEADER, get_be32(packet + 4));
    c->conn.in_start += HEADER + get_be32(packet + 4);
    put_request(&c->conn, CONFIRM);
    c->state = NULL;
}

static void ask(struct consumer *c)
{
    if (c->settling) {
        c->settled = conn_flush(&c->conn);
    } else if (!c->state) {
        put_request(&c->conn, RECEIVE);
        c->state = c; /* asked */
    }
}

const struct protocol sspq = {
    .name = "sspq",
    .frame = frame,
    .open_publisher = open_publisher,
    .fence = fence,
    .confirm = confirm,
    .inquire = inquire,
    .open_consumer = open_consumer,
    .consume = consume,
    .ask = ask,
};
