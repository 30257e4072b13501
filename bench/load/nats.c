/*
 * NATS twice: core (nothing stored, nothing acked; a PING is its only fence) and JetStream (every publish carries
 * a reply subject and is confirmed by a PubAck, a pull consumer takes batches, every message is acked).
 *
 * A wildcard subject covers all topics, so one consumer serves them as NATS users would have it.
 */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>

#define HELLO_LINE "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n"
enum { REPLY_MAX = 256, PULL_EXPIRES_S = 30 };

struct pull_state {
    uint64_t credit;          /* messages asked for and not yet come */
    char last[REPLY_MAX];     /* the reply subject of the last message */
    bool final_sent;
};

/* One protocol line and, for messages, what it carries. */
struct line {
    const uint8_t *subject, *reply, *payload, *next;
    size_t reply_size, payload_size;
    bool message, status; /* status: a message with headers, as JetStream sends instead of data */
};

static size_t number_at_end(const uint8_t *p, const uint8_t *end)
{
    size_t n = 0;
    while (end > p && end[-1] != ' ')
        end--;
    for (; *end >= '0' && *end <= '9'; end++)
        n = n * 10 + (size_t)(*end - '0');
    return n;
}

static const uint8_t *after_space(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *space = memchr(p, ' ', (size_t)(end - p));
    if (!space)
        die("nats: a message line with too few fields");
    return space + 1;
}

/* MSG subject sid [reply] size, HMSG subject sid [reply] header-size size; next is NULL if it is not all there. */
static struct line next_line(struct conn *c)
{
    struct line l = {0};
    const uint8_t *p = conn_data(c), *end = c->in + c->in_end;
    const uint8_t *newline = memchr(p, '\n', conn_size(c));
    if (!newline)
        return l;
    l.next = newline + 1;
    if (*p == '-')
        die("nats: %.*s", (int)(newline - p), (const char *)p);
    l.status = *p == 'H';
    l.message = l.status || *p == 'M';
    if (!l.message)
        return l;
    l.subject = p + (l.status ? 5 : 4);
    const uint8_t *field = after_space(after_space(l.subject, newline), newline);
    if (*field < '0' || *field > '9') {
        l.reply = field;
        l.reply_size = (size_t)(after_space(field, newline) - field - 1);
    }
    l.payload = l.next;
    l.payload_size = number_at_end(p, newline - 1);
    l.next += l.payload_size + 2;
    if (l.next > end)
        l.next = NULL;
    return l;
}

static void greet(struct conn *c, const struct options *o)
{
    conn_open(c, o->host, o->port);
    conn_printf(c, HELLO_LINE "PING\r\n");
    struct line l;
    do {
        while (!conn_size(c) || !(l = next_line(c)).next)
            conn_need(c, conn_size(c) + 1);
        l.subject = conn_data(c);
        c->in_start = (size_t)(l.next - c->in);
    } while (memcmp(l.subject, "PONG", 4) != 0);
}

/* Sends a JetStream API request and waits for its answer; an error in it ends the program. */
static void request(struct conn *c, const char *subject, const char *json)
{
    conn_printf(c, "PUB %s setup.reply %zu\r\n%s\r\n", subject, strlen(json), json);
    for (;;) {
        struct line l;
        while (!conn_size(c) || !(l = next_line(c)).next)
            conn_need(c, conn_size(c) + 1);
        c->in_start = (size_t)(l.next - c->in);
        if (l.message) {
            if (memmem(l.payload, l.payload_size, "\"error\"", 7) || l.status)
                die("%s: %.*s", subject, (int)l.payload_size, (const char *)l.payload);
            return;
        }
    }
}

static void prepare_stream(const struct options *o)
{
    struct conn c;
    char subject[80], json[512];

    greet(&c, o);
    conn_printf(&c, "SUB setup.reply 9\r\n");
    request(&c, "$JS.API.STREAM.CREATE.BENCH",
            "{\"name\":\"BENCH\",\"subjects\":[\"bench.*\"],\"retention\":\"limits\",\"storage\":\"file\","
            "\"discard\":\"old\",\"num_replicas\":1,\"max_consumers\":-1,\"max_msgs\":-1,\"max_bytes\":-1}");
    for (unsigned group = 0; group < o->fanout; group++) {
        snprintf(subject, sizeof subject, "$JS.API.CONSUMER.DURABLE.CREATE.BENCH.g%02u", group);
        snprintf(json, sizeof json,
                 "{\"stream_name\":\"BENCH\",\"config\":{\"durable_name\":\"g%02u\",\"deliver_policy\":\"all\","
                 "\"ack_policy\":\"explicit\",\"ack_wait\":30000000000,\"max_ack_pending\":%u,\"max_waiting\":64}}",
                 group, o->batch * 4);
        request(&c, subject, json);
    }
}

static size_t frame_with(const char *reply, const struct options *o, unsigned topic, uint8_t *into, size_t *payload_at)
{
    char name[TOPIC_SIZE + 1];
    topic_name(name, topic);
    int head = sprintf((char *)into, "PUB %s %s%u\r\n", name, reply, o->size);
    *payload_at = (size_t)head;
    memcpy(into + head + o->size, "\r\n", 2);
    return (size_t)head + o->size + 2;
}

static size_t core_frame(const struct options *o, unsigned topic, uint8_t *into, size_t *payload_at, size_t *number_at)
{
    *number_at = 0;
    return frame_with("", o, topic, into, payload_at);
}

static size_t stream_frame(const struct options *o, unsigned topic, uint8_t *into, size_t *payload_at, size_t *number_at)
{
    *number_at = 0;
    return frame_with("acks ", o, topic, into, payload_at);
}

static void open_core_publisher(struct publisher *p) { greet(&p->conn, p->options); }

static void open_stream_publisher(struct publisher *p)
{
    greet(&p->conn, p->options);
    conn_printf(&p->conn, "SUB acks 1\r\n");
    while (!conn_flush(&p->conn))
        conn_wait(&p->conn, 1000000);
}

static size_t core_fence(const struct publisher *p, uint64_t upto, uint8_t *into)
{
    (void)p, (void)upto;
    memcpy(into, "PING\r\n", 6);
    return 6;
}

static size_t stream_fence(const struct publisher *p, uint64_t upto, uint8_t *into)
{
    (void)p, (void)upto, (void)into;
    return 0;
}

static void confirm(struct publisher *p)
{
    struct conn *c = &p->conn;
    struct line l;
    uint64_t acked = 0;
    while (conn_size(c) && (l = next_line(c)).next) {
        const uint8_t *line = conn_data(c);
        if (l.message) {
            if (l.status || l.payload_size < 10 || l.payload[2] != 's')
                die("PubAck: %.*s", (int)l.payload_size, (const char *)l.payload);
            acked++;
        } else if (line[1] == 'O')
            publisher_fence_passed(p);
        c->in_start = (size_t)(l.next - c->in);
    }
    if (acked)
        publisher_confirmed(p, p->confirmed + acked);
}

static void open_core_consumer(struct consumer *c)
{
    greet(&c->conn, c->options);
    conn_printf(&c->conn, "SUB bench.* 1\r\nPING\r\n");
    conn_need(&c->conn, 6);
    c->conn.in_start += 6;
}

static void open_stream_consumer(struct consumer *c)
{
    if (!(c->state = calloc(1, sizeof(struct pull_state))))
        die("out of memory");
    greet(&c->conn, c->options);
    conn_printf(&c->conn, "SUB pull.%02u 1\r\nSUB settled.%02u 2\r\nPING\r\n", c->number, c->number);
    conn_need(&c->conn, 6);
    c->conn.in_start += 6;
}

static unsigned topic_of(const uint8_t *subject) { return (unsigned)atoi((const char *)subject + TOPIC_SIZE - 3); }

static void core_consume(struct consumer *c)
{
    struct line l;
    while (conn_size(&c->conn) && (l = next_line(&c->conn)).next) {
        if (l.message)
            deliver(c, topic_of(l.subject), l.payload, l.payload_size);
        c->conn.in_start = (size_t)(l.next - c->conn.in);
    }
}

static void put_ack(struct conn *c, const struct line *l)
{
    uint8_t *p = conn_reserve(c, l->reply_size + 16);
    memcpy(p, "PUB ", 4);
    memcpy(p + 4, l->reply, l->reply_size);
    memcpy(p + 4 + l->reply_size, " 0\r\n\r\n", 6);
    c->out_end += l->reply_size + 10;
}

static void stream_consume(struct consumer *c)
{
    struct pull_state *s = c->state;
    struct conn *conn = &c->conn;
    struct line l, last = {0};
    while (conn_size(conn) && (l = next_line(conn)).next) {
        if (l.message && l.subject[0] == 's')
            c->settled = true;
        else if (l.status)
            s->credit = 0; /* the request expired or was refused: ask anew */
        else if (l.message) {
            if (deliver(c, topic_of(l.subject), l.payload, l.payload_size))
                put_ack(conn, &l);
            s->credit -= s->credit > 0;
            last = l;
        }
        conn->in_start = (size_t)(l.next - conn->in);
    }
    if (last.reply_size >= REPLY_MAX)
        die("a reply subject of %zu bytes", last.reply_size);
    if (last.reply_size) {
        memcpy(s->last, last.reply, last.reply_size);
        s->last[last.reply_size] = 0;
    }
}

static void core_ask(struct consumer *c) { c->settled = c->settling; }

static void stream_ask(struct consumer *c)
{
    struct pull_state *s = c->state;
    if (c->settling) {
        if (!s->final_sent)
            conn_printf(&c->conn, "PUB %s settled.%02u 4\r\n+ACK\r\n", s->last, c->number);
        s->final_sent = true;
        return;
    }
    while (s->credit <= c->options->batch) {
        char json[80];
        int size = snprintf(json, sizeof json, "{\"batch\":%u,\"expires\":%d000000000}", c->options->batch,
                            PULL_EXPIRES_S);
        conn_printf(&c->conn, "PUB $JS.API.CONSUMER.MSG.NEXT.BENCH.g%02u pull.%02u %d\r\n%s\r\n", c->number, c->number, size,
                    json);
        s->credit += c->options->batch;
    }
}

const struct protocol nats = {
    .name = "nats",
    .frame = core_frame,
    .open_publisher = open_core_publisher,
    .fence = core_fence,
    .confirm = confirm,
    .open_consumer = open_core_consumer,
    .consume = core_consume,
    .ask = core_ask,
};

const struct protocol jetstream = {
    .name = "jetstream",
    .prepare = prepare_stream,
    .frame = stream_frame,
    .open_publisher = open_stream_publisher,
    .fence = stream_fence,
    .confirm = confirm,
    .open_consumer = open_stream_consumer,
    .consume = stream_consume,
    .ask = stream_ask,
};
