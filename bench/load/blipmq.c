/*
 * BlipMQ from its protocol document alone, sharing no code with the broker.
 *
 * A POLL asks for one message and is not answered when there is none, so a consumer sends rounds of POLLs closed
 * by a PING: the PONG says that the round is over, and what was not delivered by then was not there. A full
 * round doubles the next one and lets several be in flight; an empty one is followed by a pause. At a fixed rate
 * (latency) it asks by the clock instead, as a client that only wants the next message would: a POLL in vain is good
 * for what comes within 2 ms, so that asking more often than that leaves no gap.
 */
#include "load.h"

#include <stdlib.h>

enum { HELLO = 1, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL };
enum { HEADER = 13, REQUEST = HEADER + 8, ROUNDS_MAX = 4, ROUND_MIN = 256, FINAL_FENCE = 1 };

struct subscription_state {
    uint64_t ids[TOPICS_MAX];
    unsigned polls[ROUNDS_MAX]; /* how many each round in flight asked for */
    unsigned first, rounds;
    unsigned want;     /* size of the next round */
    unsigned got;      /* deliveries in the oldest round */
    bool full;         /* the last finished round delivered all it asked for */
    bool final_sent;
    uint64_t ask_at;   /* not before */
};

static uint8_t *put_header(uint8_t *p, unsigned type, uint64_t correlation, size_t payload)
{
    put_be32(p, (uint32_t)(payload + 9));
    p[4] = (uint8_t)type;
    put_be64(p + 5, correlation);
    return p + HEADER;
}

static uint8_t *put_request(uint8_t *p, unsigned type, uint64_t correlation, uint64_t subscription)
{
    put_be64(put_header(p, type, correlation, 8), subscription);
    return p + REQUEST;
}

static void refuse(const uint8_t *frame, size_t size)
{
    if (size < HEADER + 4)
        die("NACK without a code");
    die("NACK %u for %llu: %.*s", get_be16(frame + HEADER), (unsigned long long)get_be64(frame + 5),
        (int)get_be16(frame + HEADER + 2), (const char *)frame + HEADER + 4);
}

/* The size of the whole frame at the front of what arrived, 0 when it is not all there. */
static size_t frame_size(const uint8_t *p, size_t available)
{
    if (available < 4)
        return 0;
    size_t size = (size_t)get_be32(p) + 4;
    if (size < HEADER)
        die("a frame of %zu bytes", size);
    return size <= available ? size : 0;
}

/* Sends what is queued and returns the subscription id in the ACK that answers it. */
static uint64_t expect_ack(struct conn *c)
{
    conn_need(c, HEADER);
    size_t size;
    while (!(size = frame_size(conn_data(c), conn_size(c))))
        conn_need(c, conn_size(c) + 1);
    const uint8_t *frame = conn_data(c);
    if (frame[4] == NACK)
        refuse(frame, size);
    if (frame[4] != ACK || size != REQUEST)
        die("expected an ACK, got type %u", frame[4]);
    c->in_start += size;
    return get_be64(frame + HEADER);
}

static void handshake(struct conn *c, const struct options *o)
{
    uint8_t frame[HEADER + 2 + 65535];
    size_t key_size = strlen(o->key);

    conn_open(c, o->host, o->port);
    put_be16(put_header(frame, HELLO, 1, 2), 1);
    conn_put(c, frame, HEADER + 2);
    expect_ack(c);
    uint8_t *p = put_header(frame, AUTH, 2, 2 + key_size);
    put_be16(p, (uint16_t)key_size);
    memcpy(p + 2, o->key, key_size);
    conn_put(c, frame, HEADER + 2 + key_size);
    expect_ack(c);
}

static size_t frame(const struct options *o, unsigned topic, uint8_t *into, size_t *payload_at, size_t *number_at)
{
    char name[TOPIC_SIZE + 1];
    topic_name(name, topic);
    uint8_t *p = put_header(into, PUBLISH, 0, 3 + TOPIC_SIZE + o->size);
    p[0] = (uint8_t)o->qos;
    put_be16(p + 1, TOPIC_SIZE);
    memcpy(p + 3, name, TOPIC_SIZE);
    *payload_at = HEADER + 3 + TOPIC_SIZE;
    *number_at = 5;
    return *payload_at + o->size;
}

static void open_publisher(struct publisher *p) { handshake(&p->conn, p->options); }

static size_t fence(const struct publisher *p, uint64_t upto, uint8_t *into)
{
    (void)p;
    put_header(into, PING, upto, 0);
    return HEADER;
}

static void confirm(struct publisher *p)
{
    struct conn *c = &p->conn;
    size_t size;
    while ((size = frame_size(conn_data(c), conn_size(c)))) {
        const uint8_t *frame = conn_data(c);
        if (frame[4] == NACK)
            refuse(frame, size);
        if (frame[4] != PONG)
            die("type %u on a publishing connection", frame[4]);
        publisher_confirmed(p, get_be64(frame + 5));
        c->in_start += size;
    }
}

static void open_consumer(struct consumer *c)
{
    struct subscription_state *s = calloc(1, sizeof *s);
    const struct options *o = c->options;
    uint8_t frame[HEADER + 3 + TOPIC_SIZE];
    char name[TOPIC_SIZE + 1];

    if (!s)
        die("out of memory");
    c->state = s;
    handshake(&c->conn, o);
    for (unsigned topic = 0; topic < o->topics; topic++) {
        topic_name(name, topic);
        uint8_t *p = put_header(frame, SUBSCRIBE, 3 + topic, 3 + TOPIC_SIZE);
        put_be16(p, TOPIC_SIZE);
        memcpy(p + 2, name, TOPIC_SIZE);
        p[2 + TOPIC_SIZE] = (uint8_t)o->qos;
        conn_put(&c->conn, frame, sizeof frame);
        s->ids[topic] = expect_ack(&c->conn);
    }
    s->want = ROUND_MIN;
}

static void end_of_round(struct consumer *c, uint64_t correlation)
{
    struct subscription_state *s = c->state;
    if (correlation == FINAL_FENCE) {
        c->settled = true;
        return;
    }
    unsigned asked = s->polls[s->first];
    unsigned least = ROUND_MIN, most = c->options->batch;
    s->full = s->got >= asked;
    if (s->full)
        s->want = s->want * 2 < most ? s->want * 2 : most;
    else
        s->want = s->got * 2 < least ? least : s->got * 2 < most ? s->got * 2 : most;
    s->ask_at = s->got == 0 ? c->now + c->options->poll_us * 1000ull : 0;
    s->first = (s->first + 1) % ROUNDS_MAX;
    s->rounds--;
    s->got = 0;
}

static unsigned topic_of(const uint8_t *name)
{
    return (unsigned)(name[TOPIC_SIZE - 3] - '0') * 100 + (unsigned)(name[TOPIC_SIZE - 2] - '0') * 10 +
           (unsigned)(name[TOPIC_SIZE - 1] - '0');
}

static void consume(struct consumer *c)
{
    struct subscription_state *s = c->state;
    struct conn *conn = &c->conn;
    const size_t body = HEADER + 3 + TOPIC_SIZE;
    size_t size, start = conn->in_start;
    uint8_t *ack = conn_reserve(conn, conn_size(conn)); /* an ACK is never longer than what it answers */

    while ((size = frame_size(conn->in + start, conn->in_end - start))) {
        const uint8_t *frame = conn->in + start;
        start += size;
        if (frame[4] == PUBLISH && size >= body) {
            unsigned topic = topic_of(frame + HEADER + 3);
            bool first = deliver(c, topic, frame + body, size - body);
            s->got++;
            if (first && frame[HEADER] == 1)
                ack = put_request(ack, ACK, get_be64(frame + 5), s->ids[topic]);
        } else if (frame[4] == PONG)
            end_of_round(c, get_be64(frame + 5));
        else if (frame[4] == NACK)
            refuse(frame, size);
        else
            die("type %u of %zu bytes on a consuming connection", frame[4], size);
    }
    conn->in_start = start;
    conn->out_end = (size_t)(ack - conn->out);
}

static void put_polls(struct consumer *c, unsigned each)
{
    struct subscription_state *s = c->state;
    uint8_t *p = conn_reserve(&c->conn, (size_t)each * c->options->topics * REQUEST);
    for (unsigned topic = 0; topic < c->options->topics; topic++)
        for (unsigned i = 0; i < each; i++)
            p = put_request(p, POLL, 0, s->ids[topic]);
    c->conn.out_end = (size_t)(p - c->conn.out);
}

static void put_ping(struct conn *c, uint64_t correlation)
{
    put_header(conn_reserve(c, HEADER), PING, correlation, 0);
    c->out_end += HEADER;
}

/* No fences: a few more polls than came back last time, at once after a delivery and else by the clock. */
static void ask_by_clock(struct consumer *c)
{
    struct subscription_state *s = c->state;
    if (s->got == 0 && c->now < s->ask_at)
        return;
    put_polls(c, (s->got * 2 + 32) / c->options->topics + 1);
    s->got = 0;
    s->ask_at = c->now + c->options->poll_us * 1000ull;
}

static void ask(struct consumer *c)
{
    struct subscription_state *s = c->state;
    if (c->settling) {
        if (!s->final_sent)
            put_ping(&c->conn, FINAL_FENCE);
        s->final_sent = true;
        return;
    }
    if (c->options->rate) {
        ask_by_clock(c);
        return;
    }
    while (s->rounds == 0 ? c->now >= s->ask_at : s->full && s->rounds < ROUNDS_MAX) {
        unsigned each = (s->want + c->options->topics - 1) / c->options->topics;
        put_polls(c, each);
        put_ping(&c->conn, 0);
        s->polls[(s->first + s->rounds) % ROUNDS_MAX] = each * c->options->topics;
        s->rounds++;
    }
}

const struct protocol blipmq = {
    .name = "blipmq",
    .frame = frame,
    .open_publisher = open_publisher,
    .fence = fence,
    .confirm = confirm,
    .open_consumer = open_consumer,
    .consume = consume,
    .ask = ask,
};
