/*
 * load: puts one shape of load on one message broker and prints what happened as one JSON object.
 *
 *   publish  one publisher, as fast as the window allows, counted when the last confirmation is back
 *   e2e      the same and consumers (--fanout) of every topic (--topics) that ack every message
 *   drain    a backlog first, then consumers, alone or beside a publisher (--publishing)
 *   latency  e2e at a fixed rate; a message's age is counted from when it was due, not from when it was sent
 *   backlog  subscribes, publishes --backlog messages and leaves them there
 *
 * The publisher is the main thread, all consumers are one other thread: on a small machine the broker must be
 * what is measured.
 */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { BATCH_BYTES = 256 * 1024, TURN_NS = 200 * 1000, FENCE_SIZE_MAX = 64, FRAME_OVERHEAD_MAX = 256 };
static const uint64_t SECOND = 1000000000u, NEVER = UINT64_MAX;

static const struct protocol *const protocols[] = {&blipmq, &sspq, &fujin_tcp, &redis, &nats, &jetstream};

/* What the two threads tell each other. */
static _Atomic uint64_t expected = UINT64_MAX; /* messages every consumer must see; unknown while publishing */
static _Atomic uint64_t progress;              /* messages the slowest consumer has seen */

static const struct protocol *protocol;
static struct options options = {
    .target = "blipmq", .scenario = "e2e", .host = "127.0.0.1", .key = "dev-key", .port = 5555,
    .size = 100, .qos = 1, .topics = 1, .fanout = 1, .seconds = 2, .window = 16 << 20, .lead = 262144,
    .batch = 8192, .poll_us = 100,
};

void topic_name(char *into, unsigned topic) { sprintf(into, "bench.%03u", topic % TOPICS_MAX); }

/* ---- publishing ---------------------------------------------------------------------------------------- */

void publisher_confirmed(struct publisher *p, uint64_t upto)
{
    if (upto > p->sent || upto < p->confirmed)
        die("%llu messages confirmed, %llu sent", (unsigned long long)upto, (unsigned long long)p->sent);
    p->confirmed = upto;
    uint64_t now = now_ns();
    while (p->fence_first != p->fence_last && p->fences[p->fence_first % FENCES_MAX].upto <= upto)
        histogram_add(&p->durable, now - p->fences[p->fence_first++ % FENCES_MAX].since, 1);
}

void publisher_fence_passed(struct publisher *p)
{
    if (p->fence_first == p->fence_last)
        die("a confirmation nobody asked for");
    publisher_confirmed(p, p->fences[p->fence_first % FENCES_MAX].upto);
}

/* How many messages go into one batch: a burst at a fixed rate, else a big write, a multiple of all topics. */
static unsigned batch_count(const struct options *o)
{
    uint64_t count = o->rate ? o->rate / 1000 : BATCH_BYTES / (o->size + 40);
    if (count < o->topics && o->topics > 1)
        count = o->topics;
    count -= o->topics > 1 ? count % o->topics : 0;
    return count ? (unsigned)count : 1;
}

static void publisher_build(struct publisher *p)
{
    const struct options *o = p->options;
    uint8_t *batch = malloc(batch_count(o) * (size_t)(o->size + FRAME_OVERHEAD_MAX) + FENCE_SIZE_MAX);
    if (!batch)
        die("out of memory");
    p->count = batch_count(o);
    for (unsigned i = 0; i < p->count; i++) {
        uint8_t *into = batch + i * p->stride;
        p->stride = protocol->frame(o, i % o->topics, into, &p->payload_at, &p->number_at);
        for (unsigned k = SIZE_MIN; k < o->size; k++)
            into[p->payload_at + k] = (uint8_t)(k * 31 + i);
    }
    free(p->conn.out);
    p->conn.out = batch;
    p->conn.out_cap = p->count * p->stride + FENCE_SIZE_MAX;
}

/* Numbers the batch's messages, gives them the time they were due, and makes it the next thing to send. */
static void publisher_stamp(struct publisher *p, uint64_t due)
{
    uint8_t *message = p->conn.out;
    for (unsigned i = 0; i < p->count; i++, message += p->stride) {
        uint64_t number = p->sent + i;
        memcpy(message + p->payload_at, &number, 8);
        memcpy(message + p->payload_at + 8, &due, 8);
        if (p->number_at)
            put_be64(message + p->number_at, number);
    }
    p->sent += p->count;
    p->fences[p->fence_last % FENCES_MAX].upto = p->sent;
    p->fences[p->fence_last++ % FENCES_MAX].since = due;
    p->conn.out_end = p->count * p->stride + protocol->fence(p, p->sent, message);
}

static void publisher_listen(struct publisher *p, bool last)
{
    if (conn_read(&p->conn))
        protocol->confirm(p);
    if (protocol->inquire)
        protocol->inquire(p, last);
}

static void publisher_turn(struct publisher *p, uint64_t timeout_ns, bool last)
{
    conn_wait(&p->conn, timeout_ns);
    publisher_listen(p, last);
}

static bool publisher_may_send(const struct publisher *p, uint64_t lead)
{
    return (p->sent - p->confirmed) * p->stride <= p->options->window && p->fence_last - p->fence_first < FENCES_MAX &&
           (lead == 0 || p->sent < atomic_load(&progress) + lead);
}

/* Publishes whole batches until `upto` messages are sent or it is `until`, then waits for all confirmations. */
static void publish(struct publisher *p, uint64_t upto, uint64_t until, uint64_t lead)
{
    const uint64_t rate = p->options->rate, interval = rate ? p->count * SECOND / rate : 0;
    uint64_t now, due = now_ns();
    while (p->sent < upto && (now = now_ns()) < until) {
        if (rate && now < due) {
            publisher_turn(p, due - now, false);
            continue;
        }
        if (!publisher_may_send(p, lead)) {
            publisher_turn(p, TURN_NS, false);
            continue;
        }
        publisher_stamp(p, rate ? due : now);
        while (!conn_flush(&p->conn))
            publisher_turn(p, TURN_NS, false);
        publisher_listen(p, false);
        due += interval;
    }
    while (p->confirmed < p->sent)
        publisher_turn(p, TURN_NS, true);
}

/* ---- consuming ----------------------------------------------------------------------------------------- */

/* Lets every consumer ask for more, or settle when it has seen everything; true when all have settled. */
static bool ask_all(struct consumer *consumers, struct pollfd *waiting)
{
    uint64_t all = atomic_load(&expected), slowest = NEVER, now = now_ns();
    bool settled = true;
    for (unsigned i = 0; i < options.fanout; i++) {
        struct consumer *c = &consumers[i];
        uint64_t seen = c->received + c->lost;
        c->now = now;
        c->settling = seen >= all;
        protocol->ask(c);
        waiting[i].events = (short)(conn_flush(&c->conn) ? POLLIN : POLLIN | POLLOUT);
        slowest = seen < slowest ? seen : slowest;
        settled = settled && c->settled;
    }
    atomic_store(&progress, slowest);
    return settled;
}

static void *consume_all(void *argument)
{
    struct consumer *consumers = argument;
    struct pollfd waiting[CONSUMERS_MAX] = {0};
    const struct timespec pause = {.tv_nsec = options.poll_us * 1000L}, none = {0};

    for (unsigned i = 0; i < options.fanout; i++)
        waiting[i].fd = consumers[i].conn.fd;
    while (!ask_all(consumers, waiting)) {
        if (ppoll(waiting, options.fanout, options.spin ? &none : &pause, NULL) < 0 && errno != EINTR)
            die("poll: %s", strerror(errno));
        for (unsigned i = 0; i < options.fanout; i++)
            if (waiting[i].revents && conn_read(&consumers[i].conn)) {
                consumers[i].now = now_ns();
                protocol->consume(&consumers[i]);
            }
    }
    return NULL;
}

static struct consumer *open_consumers(struct histogram *latency)
{
    struct consumer *consumers = calloc(options.fanout, sizeof *consumers);
    if (!consumers)
        die("out of memory");
    for (unsigned i = 0; i < options.fanout; i++) {
        consumers[i].options = &options;
        consumers[i].number = i;
        consumers[i].latency = latency;
        for (unsigned topic = 0; topic < options.topics; topic++)
            consumers[i].next[topic] = topic;
        protocol->open_consumer(&consumers[i]);
    }
    return consumers;
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

static void print_histogram(const char *name, const struct histogram *h)
{
    printf(",\"%s\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}", name, histogram_us(h, 0.5),
           histogram_us(h, 0.9), histogram_us(h, 0.99), histogram_us(h, 0.999), (double)h->max / 1e3);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static bool scenario_is(const char *name) { return strcmp(options.scenario, name) == 0; }

static void run(void)
{
    static struct publisher publisher;
    static struct histogram latency;
    const bool subscribes = !scenario_is("publish"), consumes = subscribes && !scenario_is("backlog");
    const bool publishes = (!scenario_is("drain") || options.publishing) && !scenario_is("backlog");
    struct consumer *consumers = NULL;
    pthread_t consuming;

    if (protocol->prepare)
        protocol->prepare(&options);
    if (subscribes)
        consumers = open_consumers(&latency);
    publisher.options = &options;
    protocol->open_publisher(&publisher);
    publisher_build(&publisher);

    uint64_t start = now_ns();
    publish(&publisher, options.backlog, NEVER, 0);
    double backlog_s = (double)(now_ns() - start) / 1e9;
    const uint64_t stored = publisher.sent;

    memset(&publisher.durable, 0, sizeof publisher.durable);
    start = now_ns();
    for (unsigned i = 0; consumes && i < options.fanout; i++)
        consumers[i].measure_from = options.rate ? start + SECOND / 4 : start;
    if (consumes && pthread_create(&consuming, NULL, consume_all, consumers))
        die("no thread for the consumers");
    if (publishes)
        publish(&publisher, options.count ? stored + options.count : NEVER,
                options.count ? NEVER : start + (uint64_t)(options.seconds * 1e9),
                consumes && !stored && !options.rate ? options.lead : 0);
    double publish_s = (double)(now_ns() - start) / 1e9;
    const uint64_t seen_meanwhile = atomic_load(&progress);
    atomic_store(&expected, publisher.sent + options.stored);
    if (consumes)
        pthread_join(consuming, NULL);
    double seconds = (double)(now_ns() - start) / 1e9;

    uint64_t received = 0, redelivered = 0, lost = 0;
    for (unsigned i = 0; consumes && i < options.fanout; i++) {
        received += consumers[i].received;
        redelivered += consumers[i].redelivered;
        lost += consumers[i].lost;
    }
    const uint64_t published = publisher.sent - stored;
    printf("{\"target\":\"%s\",\"scenario\":\"%s\",\"size\":%u,\"qos\":%u,\"topics\":%u,\"fanout\":%u", options.target,
           options.scenario, options.size, options.qos, options.topics, options.fanout);
    printf(",\"backlog\":%llu,\"backlog_s\":%.6f", (unsigned long long)stored, backlog_s);
    printf(",\"published\":%llu,\"publish_s\":%.6f,\"received\":%llu,\"received_while_publishing\":%llu,\"seconds\":%.6f",
           (unsigned long long)published, publish_s, (unsigned long long)received, (unsigned long long)seen_meanwhile,
           seconds);
    printf(",\"redelivered\":%llu,\"lost\":%llu,\"client_cpu_s\":%.3f", (unsigned long long)redelivered,
           (unsigned long long)lost, cpu_seconds());
    print_histogram("latency_us", &latency);
    print_histogram("confirm_us", &publisher.durable);
    puts("}");
    if (lost && options.qos)
        die("%llu messages never came", (unsigned long long)lost);
}

static uint64_t number(const char *name, const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text || value < least || value > most)
        die("--%s takes a number from %llu to %llu, not '%s'", name, (unsigned long long)least,
            (unsigned long long)most, text);
    return value;
}

static void parse(int argc, char **argv)
{
    enum { TARGET = 1, SCENARIO, HOST, PORT, KEY, SIZE, QOS, TOPICS, FANOUT, SECONDS, COUNT, RATE, BACKLOG, STORED, WINDOW,
           LEAD, BATCH, POLL_US, PUBLISHING, METRICS_PORT, SPIN };
    static const struct option names[] = {
        {"target", 1, 0, TARGET}, {"scenario", 1, 0, SCENARIO}, {"host", 1, 0, HOST}, {"port", 1, 0, PORT},
        {"key", 1, 0, KEY}, {"size", 1, 0, SIZE}, {"qos", 1, 0, QOS}, {"topics", 1, 0, TOPICS},
        {"fanout", 1, 0, FANOUT}, {"seconds", 1, 0, SECONDS}, {"count", 1, 0, COUNT}, {"rate", 1, 0, RATE},
        {"backlog", 1, 0, BACKLOG}, {"stored", 1, 0, STORED}, {"window", 1, 0, WINDOW}, {"lead", 1, 0, LEAD},
        {"batch", 1, 0, BATCH}, {"poll-us", 1, 0, POLL_US}, {"publishing", 0, 0, PUBLISHING},
        {"metrics-port", 1, 0, METRICS_PORT}, {"spin", 0, 0, SPIN}, {0, 0, 0, 0},
    };
    struct options *o = &options;
    for (int which, index; (which = getopt_long(argc, argv, "", names, &index)) != -1;) {
        const char *name = which == '?' ? "" : names[index].name;
        switch (which) {
        case TARGET: o->target = optarg; break;
        case SCENARIO: o->scenario = optarg; break;
        case HOST: o->host = optarg; break;
        case KEY: o->key = optarg; break;
        case PORT: o->port = (int)number(name, optarg, 1, 65535); break;
        case SIZE: o->size = (unsigned)number(name, optarg, SIZE_MIN, 1 << 20); break;
        case QOS: o->qos = (unsigned)number(name, optarg, 0, 1); break;
        case TOPICS: o->topics = (unsigned)number(name, optarg, 1, TOPICS_MAX); break;
        case FANOUT: o->fanout = (unsigned)number(name, optarg, 1, CONSUMERS_MAX); break;
        case SECONDS: o->seconds = atof(optarg); break;
        case COUNT: o->count = number(name, optarg, 0, NEVER); break;
        case RATE: o->rate = number(name, optarg, 1, 1000000000); break;
        case BACKLOG: o->backlog = number(name, optarg, 0, NEVER); break;
        case STORED: o->stored = number(name, optarg, 0, NEVER); break;
        case WINDOW: o->window = number(name, optarg, 1, NEVER); break;
        case LEAD: o->lead = number(name, optarg, 0, NEVER); break;
        case BATCH: o->batch = (unsigned)number(name, optarg, 1, 1 << 20); break;
        case POLL_US: o->poll_us = (unsigned)number(name, optarg, 1, 900000); break;
        case PUBLISHING: o->publishing = true; break;
        case SPIN: o->spin = true; break;
        case METRICS_PORT: o->metrics_port = (int)number(name, optarg, 1, 65535); break;
        default: die("see the head of main.c for the scenarios and struct options for the settings");
        }
    }
    for (unsigned i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (strcmp(protocols[i]->name, o->target) == 0)
            protocol = protocols[i];
    if (!protocol)
        die("unknown target '%s'", o->target);
    if (!scenario_is("publish") && !scenario_is("e2e") && !scenario_is("drain") && !scenario_is("latency") &&
        !scenario_is("backlog"))
        die("unknown scenario '%s'", o->scenario);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_TIMERSLACK, 1000);
    parse(argc, argv);
    run();
    return 0;
}
