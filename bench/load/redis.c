/*
 * Redis streams: XADD pipelined, XREADGROUP of many messages at once, one XACK for all that a reply held.
 *
 * Two reads are kept in flight, and a read waits on the server (BLOCK) while the stream is empty, so no round
 * trip and no idle polling is charged to Redis.
 */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>

enum { READS_MAX = 2, BLOCK_MS = 50, ID_MAX = 48 };

struct group_state {
    unsigned reads, acks; /* commands in flight */
    char *ids;            /* the arguments of the next XACK */
    size_t ids_size, ids_cap;
    unsigned id_count;
};

/* One value at p: its type, its length or number, and where its content (or what follows it) starts. */
struct resp {
    char type;
    long number;
    const uint8_t *next;
};

/* Reads one header line; next is NULL when it has not all arrived. */
static struct resp resp_line(const uint8_t *p, const uint8_t *end)
{
    struct resp r = {0};
    if (end - p < 4)
        return r;
    const uint8_t *newline = memchr(p, '\n', (size_t)(end - p));
    if (!newline)
        return r;
    if (*p == '-')
        die("redis: %.*s", (int)(newline - p - 2), (const char *)p + 1);
    r.type = (char)*p;
    bool negative = *++p == '-';
    for (p += negative; *p >= '0' && *p <= '9'; p++)
        r.number = r.number * 10 + (*p - '0');
    r.number = negative ? -r.number : r.number;
    r.next = newline + 1;
    return r;
}

/* Where the value at p ends, NULL when it has not all arrived. */
static const uint8_t *resp_end(const uint8_t *p, const uint8_t *end)
{
    for (long left = 1; left > 0; left--) {
        struct resp r = resp_line(p, end);
        if (!r.next)
            return NULL;
        p = r.next;
        if (r.type == '*' && r.number > 0)
            left += r.number;
        else if (r.type == '$' && r.number >= 0) {
            if (end - p < r.number + 2)
                return NULL;
            p += r.number + 2;
        }
    }
    return p;
}

static void prepare(const struct options *o)
{
    struct conn c;
    char name[TOPIC_SIZE + 1];

    conn_open(&c, o->host, o->port);
    for (unsigned topic = 0; topic < o->topics; topic++)
        for (unsigned group = 0; group < o->fanout; group++) {
            topic_name(name, topic);
            conn_printf(&c, "XGROUP CREATE %s g%02u $ MKSTREAM\r\n", name, group);
            conn_need(&c, 5);
            while (!resp_end(conn_data(&c), c.in + c.in_end))
                conn_need(&c, conn_size(&c) + 1);
            c.in_start = c.in_end;
        }
}

static size_t frame(const struct options *o, unsigned topic, uint8_t *into, size_t *payload_at, size_t *number_at)
{
    char name[TOPIC_SIZE + 1];
    topic_name(name, topic);
    int head = sprintf((char *)into, "*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\nm\r\n$%u\r\n", TOPIC_SIZE, name,
                       o->size);
    *payload_at = (size_t)head;
    *number_at = 0;
    memcpy(into + head + o->size, "\r\n", 2);
    return (size_t)head + o->size + 2;
}

static void open_publisher(struct publisher *p) { conn_open(&p->conn, p->options->host, p->options->port); }

static size_t fence(const struct publisher *p, uint64_t upto, uint8_t *into)
{
    (void)p, (void)upto, (void)into;
    return 0;
}

static void confirm(struct publisher *p)
{
    struct conn *c = &p->conn;
    const uint8_t *at = conn_data(c), *end = c->in + c->in_end, *next;
    uint64_t confirmed = p->confirmed;
    while (at < end && (next = resp_end(at, end))) {
        confirmed++;
        at = next;
    }
    c->in_start = (size_t)(at - c->in);
    publisher_confirmed(p, confirmed);
}

static void open_consumer(struct consumer *c)
{
    struct group_state *s = calloc(1, sizeof *s);
    if (!s)
        die("out of memory");
    s->ids_cap = 1 << 16;
    s->ids = malloc(s->ids_cap);
    c->state = s;
    conn_open(&c->conn, c->options->host, c->options->port);
}

static void add_id(struct group_state *s, const uint8_t *id, long size)
{
    if (s->ids_cap - s->ids_size < ID_MAX && !(s->ids = realloc(s->ids, s->ids_cap *= 2)))
        die("out of memory");
    s->ids_size += (size_t)sprintf(s->ids + s->ids_size, "$%ld\r\n%.*s\r\n", size, (int)size, (const char *)id);
    s->id_count++;
}

/* One stream's part of a reply: its name, then pairs of an id and fields. Returns where it ends. */
static const uint8_t *take_stream(struct consumer *c, const uint8_t *p, const uint8_t *end)
{
    struct group_state *s = c->state;
    p = resp_line(p, end).next;                 /* *2 */
    const uint8_t *name = resp_line(p, end).next;
    unsigned topic = (unsigned)atoi((const char *)name + TOPIC_SIZE - 3);
    struct resp entries = resp_line(name + TOPIC_SIZE + 2, end);
    p = entries.next;
    for (long i = 0; i < entries.number; i++) {
        struct resp id = resp_line(resp_line(p, end).next, end);
        struct resp fields = resp_line(id.next + id.number + 2, end);
        struct resp field = resp_line(fields.next, end);
        struct resp value = resp_line(field.next + field.number + 2, end);
        if (deliver(c, topic, value.next, (size_t)value.number))
            add_id(s, id.next, id.number);
        p = value.next + value.number + 2;
    }
    if (s->id_count) {
        conn_printf(&c->conn, "*%u\r\n$4\r\nXACK\r\n$%d\r\n%.*s\r\n$3\r\ng%02u\r\n", 3 + s->id_count, TOPIC_SIZE,
                    TOPIC_SIZE, (const char *)name, c->number);
        conn_put(&c->conn, s->ids, s->ids_size);
        s->acks++;
    }
    s->id_count = 0;
    s->ids_size = 0;
    return p;
}

static void consume(struct consumer *c)
{
    struct group_state *s = c->state;
    struct conn *conn = &c->conn;
    const uint8_t *at = conn_data(conn), *end = conn->in + conn->in_end, *next;
    while (at < end && (next = resp_end(at, end))) {
        struct resp r = resp_line(at, end);
        if (r.type == ':')
            s->acks--;
        else {
            s->reads--;
            const uint8_t *p = r.next;
            for (long i = 0; i < r.number; i++)
                p = take_stream(c, p, end);
        }
        at = next;
    }
    conn->in_start = (size_t)(at - conn->in);
}

static void ask(struct consumer *c)
{
    struct group_state *s = c->state;
    char name[TOPIC_SIZE + 1];
    if (c->settling) {
        c->settled = s->acks == 0;
        return;
    }
    for (; s->reads < READS_MAX; s->reads++) {
        conn_printf(&c->conn, "XREADGROUP GROUP g%02u c COUNT %u BLOCK %d STREAMS", c->number,
                    c->options->batch / c->options->topics + 1, BLOCK_MS);
        for (unsigned topic = 0; topic < c->options->topics; topic++) {
            topic_name(name, topic);
            conn_printf(&c->conn, " %s", name);
        }
        for (unsigned topic = 0; topic < c->options->topics; topic++)
            conn_put(&c->conn, " >", 2);
        conn_put(&c->conn, "\r\n", 2);
    }
}

const struct protocol redis = {
    .name = "redis",
    .prepare = prepare,
    .frame = frame,
    .open_publisher = open_publisher,
    .fence = fence,
    .confirm = confirm,
    .open_consumer = open_consumer,
    .consume = consume,
    .ask = ask,
};
