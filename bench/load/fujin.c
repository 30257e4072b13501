/*
 * Fujin over TLS from its protocol document and our reading of it, sharing no code with the broker.
 *
 * The publisher pipelines WRITEs; each is answered once it is durable. The consumer is a push reader that acks all that
 * one read brought with one ACK; each ACK is answered once it is durable.
 */
#include "load.h"

enum { CONNECT_WRITER = 1, CONNECT_READER, WRITE, ACK = 8 };
enum { CONNECTED = 1, WRITTEN = 2, MSG = 6 };
enum { PUSH = 1, ID = 4 + 8, REPLY = 6, MSG_HEAD = 1 + ID + 4, ACK_HEAD = 9, ACKED_HEAD = 10, IDS_MAX = 16384 };

static void refuse(const uint8_t *error, size_t available)
{
    size_t size = available >= 5 ? get_be32(error + 1) : 0;
    die("refused: %.*s", (int)(size < available - 5 ? size : available - 5), (const char *)error + 5);
}

static size_t frame(const struct options *o, unsigned topic, uint8_t *into, size_t *payload_at, size_t *number_at)
{
    char name[TOPIC_SIZE + 1];
    if (o->size > 65535)
        die("a first WRITE without headers must be smaller than 64 KiB");
    topic_name(name, topic);
    into[0] = WRITE;
    put_be32(into + 1, topic);
    put_be32(into + 5, TOPIC_SIZE);
    memcpy(into + 9, name, TOPIC_SIZE);
    put_be32(into + 9 + TOPIC_SIZE, o->size);
    *payload_at = 13 + TOPIC_SIZE;
    *number_at = 0;
    return *payload_at + o->size;
}

static void open_publisher(struct publisher *p)
{
    static const uint8_t connect[] = {CONNECT_WRITER, 0, 0, 0, 0};
    conn_open(&p->conn, p->options->host, p->options->port);
    conn_secure(&p->conn);
    conn_put(&p->conn, connect, sizeof connect);
    while (!conn_flush(&p->conn))
        conn_wait(&p->conn, 100000000u);
}

static size_t fence(const struct publisher *p, uint64_t upto, uint8_t *into)
{
    (void)p, (void)upto, (void)into;
    return 0;
}

/* Every WRITE has one reply; they are counted, for all of a stream are answered for in the order they are durable. */
static void confirm(struct publisher *p)
{
    struct conn *c = &p->conn;
    uint64_t count = 0;
    for (; conn_size(c) >= REPLY; c->in_start += REPLY, count++) {
        const uint8_t *reply = conn_data(c);
        if (reply[0] != WRITTEN)
            die("response %u on a writing stream", reply[0]);
        if (reply[5])
            refuse(reply + 5, conn_size(c) - 5);
    }
    if (count)
        publisher_confirmed(p, p->confirmed + count);
}

static void open_consumer(struct consumer *c)
{
    uint8_t connect[7 + TOPIC_SIZE] = {CONNECT_READER, PUSH, 0};
    char name[TOPIC_SIZE + 1];

    if (c->options->topics > 1 || c->options->fanout > 1)
        die("a Fujin reader reads one topic, and shares it with every other");
    topic_name(name, 0);
    put_be32(connect + 3, TOPIC_SIZE);
    memcpy(connect + 7, name, TOPIC_SIZE);
    conn_open(&c->conn, c->options->host, c->options->port);
    conn_secure(&c->conn);
    conn_put(&c->conn, connect, sizeof connect);
    conn_need(&c->conn, 2);
    const uint8_t *reply = conn_data(&c->conn);
    if (reply[0] != CONNECTED || reply[1])
        refuse(reply + 1, conn_size(&c->conn) - 1);
    c->conn.in_start += 2;
}

/* Outstanding ACKs are counted in the consumer's state, which needs nothing else. */
static uintptr_t unanswered(const struct consumer *c) { return (uintptr_t)c->state; }

/* The size of the response at `p`, 0 when it is not all there. */
static size_t response_size(const uint8_t *p, size_t available)
{
    size_t size = 1;
    if (p[0] == MSG)
        size = available < MSG_HEAD ? available + 1 : MSG_HEAD + get_be32(p + MSG_HEAD - 4);
    else if (p[0] == ACK)
        size = available < ACKED_HEAD ? available + 1 : ACKED_HEAD + (size_t)get_be32(p + 6) * (ID + 1);
    else
        die("response %u on a reading stream", p[0]);
    return size <= available ? size : 0;
}

static void acked(struct consumer *c, const uint8_t *reply, size_t size)
{
    if (reply[5])
        refuse(reply + 5, size - 5);
    for (size_t at = ACKED_HEAD + ID; at < size; at += ID + 1)
        if (!reply[at])
            die("an ACK came too late");
    c->state = (void *)(unanswered(c) - 1);
}

static void consume(struct consumer *c)
{
    struct conn *conn = &c->conn;
    uint8_t *ack = conn_reserve(conn, ACK_HEAD + conn_size(conn));
    uint32_t count = 0;
    size_t size;

    while (count < IDS_MAX && conn_size(conn) && (size = response_size(conn_data(conn), conn_size(conn)))) {
        const uint8_t *p = conn_data(conn);
        conn->in_start += size;
        if (p[0] == ACK)
            acked(c, p, size);
        else if (deliver(c, 0, p + MSG_HEAD, size - MSG_HEAD))
            memcpy(ack + ACK_HEAD + ID * (size_t)count++, p + 1, ID);
    }
    if (count == 0)
        return;
    ack[0] = ACK;
    put_be32(ack + 1, 0);
    put_be32(ack + 5, count);
    conn->out_end += ACK_HEAD + ID * (size_t)count;
    c->state = (void *)(unanswered(c) + 1);
}

static void ask(struct consumer *c) { c->settled = c->settling && unanswered(c) == 0 && c->conn.out_start == c->conn.out_end; }

const struct protocol fujin_tcp = {
    .name = "fujin_tcp",
    .frame = frame,
    .open_publisher = open_publisher,
    .fence = fence,
    .confirm = confirm,
    .open_consumer = open_consumer,
    .consume = consume,
    .ask = ask,
};
