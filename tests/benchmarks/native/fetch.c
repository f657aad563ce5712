/* Asks the upstream `asked` for answers through a proxy, reads them as fast as it may, and compares every byte.
 *
 *     fetch --connect HOST:PORT --connections 4 --in-flight 1 --request 24 --answer 100000000 (--count 1 | --warm-up 0.5 --seconds 2)
 *           [--read-rate BYTES_PER_SECOND] [--per-second REQUESTS] [--patience SECONDS] [--segment BYTES] [--tls]
 *
 * --request and --answer are sizes of bodies; --answer 0: what is sent comes back. --count ends after as many answers on each connection.
 * --read-rate bounds how fast each connection is read. --per-second: requests fall due at a steady rate, on the connections in turn, whether answers
 * came or not; a request's time counts from when it was due, and one that is still missing after --patience counts as well.
 *
 * `first`: from when the upstream handed the first byte to its socket until the first byte of the frame was here (nothing for echoes).
 * `whole`: from when a request was due (closed loop: begun) until the last byte of its answer was here.
 */
#include "client.h"

#include <sys/prctl.h>
#include <sys/syscall.h>

#define TICK_NS 2000000
#define BURST_NS 50000000
#define SLICE_NS 100000

struct options {
    const char *connect;
    int connections, in_flight, segment;
    size_t request, answer;
    uint64_t count;
    double warm_up, seconds, read_rate, per_second, patience;
};

struct connection {
    int fd, number;
    uint32_t events;
    SSL *ssl;
    uint64_t begun, received;       /* requests, answers */
    size_t out, refused;            /* bytes of the last request that are out (all: frame size); a TLS write to be repeated unchanged */
    size_t got;                     /* bytes of the answer that comes */
    int64_t first, refilled;
    double allowance;
    unsigned char head[HEAD];
    int64_t *due;                   /* ring of those under way */
};

struct histogram {
    uint64_t cells[64 * 64], total;
    int64_t slowest;
};

static struct options options;
static struct histogram first, whole;
static struct connection **all;
static char scratch[CHUNK], outgoing[CHUNK];
static size_t request_size, answer_size; /* frames */
static uint64_t ring, received, received_bytes, counted, missing;
static int64_t start, measure_from, measure_until, moved_ns;
static int epoll;

/* 64 linear steps in each power of two of nanoseconds, 1.6 % wide */
static void record(struct histogram *to, int64_t ns) {
    uint64_t value = ns < 64 ? 64 : (uint64_t)ns;
    if (ns > to->slowest) to->slowest = ns;
    int power = 63 - __builtin_clzll(value);
    to->cells[power * 64 + (int)((value >> (power - 6)) & 63)]++;
    to->total++;
}

static double percentile_us(const struct histogram *of, double share) {
    uint64_t wanted = (uint64_t)((double)of->total * share), seen = 0;
    for (int i = 0; i < 64 * 64; i++) {
        seen += of->cells[i];
        if (seen > wanted) return (double)((64ull + (uint64_t)(i % 64)) << (i / 64) >> 6) / 1000.0;
    }
    return 0;
}

static uint64_t number_of(const struct connection *c, uint64_t sequence) { return (uint64_t)c->number << 32 | sequence; }

static void set_events(struct connection *c, uint32_t events) {
    if (c->events != events) {
        c->events = events;
        watch(epoll, EPOLL_CTL_MOD, c->fd, events, c);
    }
}

/* Of its request number `sequence`, in an open loop. */
static int64_t due_at(const struct connection *c, uint64_t sequence) {
    return start + (int64_t)(((double)sequence * options.connections + c->number) * 1e9 / options.per_second);
}

static int may_begin(const struct connection *c, int64_t now) {
    if (options.count && c->begun == options.count) return 0;
    if (c->begun - c->received >= ring) return 0;
    if (options.per_second > 0) return due_at(c, c->begun) <= now && due_at(c, c->begun) < measure_until;
    if (now >= measure_until) return 0;
    return c->begun - c->received < (uint64_t)options.in_flight;
}

static void begin(struct connection *c, int64_t now) {
    c->due[c->begun % ring] = options.per_second > 0 ? due_at(c, c->begun) : now;
    c->begun++;
    c->out = 0;
}

/* Everything that may go now goes, as far as the socket takes it. */
static void send_some(struct connection *c) {
    for (;;) {
        if (c->out == request_size) {
            int64_t now = now_ns();
            if (!may_begin(c, now)) break;
            begin(c, now);
        }
        uint64_t number = number_of(c, c->begun - 1);
        size_t most = c->ssl != NULL ? TLS_WRITE : CHUNK, size = request_size - c->out < most ? request_size - c->out : most;
        const char *from;
        if (c->out < HEAD) {
            make_head((unsigned char *)outgoing, options.request, MAGIC, options.answer, number);
            size_t rest = c->out + size > HEAD ? c->out + size - HEAD : 0;
            memcpy(outgoing + HEAD, pattern_at(number, BODY_HEAD), rest < CHUNK - HEAD ? rest : CHUNK - HEAD);
            if (c->out + size > CHUNK) size = CHUNK - c->out;
            from = outgoing + c->out;
        } else {
            from = pattern_at(number, c->out - 4);
        }
        if (c->refused) size = c->refused;
        ssize_t count = write_bytes(c->fd, c->ssl, from, size);
        if (count == 0) die("connection %d: closed while request %llu went", c->number, (unsigned long long)c->begun);
        c->refused = count < 0 && c->ssl != NULL ? size : 0;
        if (count < 0) {
            set_events(c, c->events | EPOLLOUT);
            return;
        }
        c->out += (size_t)count;
        moved_ns = now_ns();
        if (c->ssl == NULL && (size_t)count < size) {
            set_events(c, c->events | EPOLLOUT);
            return;
        }
    }
    set_events(c, c->events & ~(uint32_t)EPOLLOUT);
}

static void check_head(const struct connection *c) {
    uint64_t number = number_of(c, c->received), second = options.answer;
    if (c->received >= c->begun) die("connection %d: an answer came that nobody asked for", c->number);
    if (size_of(c->head) != answer_size - 4 || word_of(c->head + 4, 1) != second || word_of(c->head + 4, 2) != number)
        die("connection %d: the head of answer %llu came changed", c->number, (unsigned long long)c->received);
    if (options.answer == 0 && word_of(c->head + 4, 0) != MAGIC) die("connection %d: an echo came changed", c->number);
}

static void finish_answer(struct connection *c, int64_t now) {
    int64_t due = c->due[c->received % ring];
    c->received++;
    received++;
    c->got = 0;
    int in_time = options.per_second > 0 ? due >= measure_from && due < measure_until : now >= measure_from && now < measure_until;
    if (!in_time) return;
    counted++;
    record(&whole, now - due);
    if (options.answer) record(&first, c->first - (int64_t)word_of(c->head + 4, 0));
}

static void take(struct connection *c, const char *from, size_t size, int64_t now) {
    received_bytes += size;
    while (size > 0) {
        if (c->got == 0) c->first = now;
        size_t count;
        if (c->got < HEAD) {
            count = HEAD - c->got < size ? HEAD - c->got : size;
            memcpy(c->head + c->got, from, count);
            if (c->got + count == HEAD) check_head(c);
        } else {
            count = answer_size - c->got < size ? answer_size - c->got : size;
            if (memcmp(from, pattern_at(number_of(c, c->received), c->got - 4), count) != 0)
                die("connection %d: answer %llu came changed", c->number, (unsigned long long)c->received);
        }
        c->got += count;
        from += count;
        size -= count;
        if (c->got == answer_size) finish_answer(c, now);
    }
}

/* What the read rate allows now; as much as there is room for when there is none. */
static size_t allowed(struct connection *c, int64_t now) {
    if (options.read_rate == 0) return sizeof scratch;
    c->allowance += options.read_rate * (double)(now - c->refilled) / 1e9;
    c->refilled = now;
    double most = options.read_rate * BURST_NS / 1e9;
    if (c->allowance > most) c->allowance = most;
    return c->allowance < sizeof scratch ? (c->allowance < 1 ? 0 : (size_t)c->allowance) : sizeof scratch;
}

static void receive(struct connection *c) {
    do {
        int64_t now = now_ns();
        size_t room = allowed(c, now);
        if (room < 1024 && options.read_rate > 0) { /* again at the next tick */
            set_events(c, c->events & ~(uint32_t)EPOLLIN);
            return;
        }
        ssize_t count = read_bytes(c->fd, c->ssl, scratch, room);
        if (count == 0) die("connection %d: closed by the other side after %llu answers", c->number, (unsigned long long)c->received);
        if (count < 0) return;
        c->allowance -= (double)count;
        moved_ns = now = now_ns();
        take(c, scratch, (size_t)count, now);
    } while (c->ssl != NULL && SSL_has_pending(c->ssl));
}

static struct connection *open_connection(int number, const struct sockaddr_in *address) {
    struct connection *c = allocate(sizeof *c);
    struct timeval patience = {.tv_sec = (time_t)options.patience};
    c->number = number;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0) die("socket: %s", strerror(errno));
    set_segment(c->fd, options.segment);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(c->fd, (const struct sockaddr *)address, sizeof *address) < 0) die("connect: %s", strerror(errno));
    set_no_delay(c->fd);
    if (tls != NULL) {
        c->ssl = new_tls(c->fd);
        if (SSL_do_handshake(c->ssl) != 1) die("connection %d: no TLS handshake in %.0f s", number, options.patience);
    }
    set_non_blocking(c->fd);
    c->out = request_size;
    c->due = allocate(ring * sizeof *c->due);
    c->events = EPOLLIN;
    c->refilled = now_ns();
    watch(epoll, EPOLL_CTL_ADD, c->fd, EPOLLIN, c);
    return c;
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* One wait, and what it gave; connections that may go on without an event go on. */
static void turn(int64_t until) {
    struct epoll_event events[512];
    int paced = options.read_rate > 0 || options.per_second > 0;
    until = earlier(until, now_ns() + (options.read_rate > 0 ? TICK_NS : 100000000));
    for (int i = 0; options.per_second > 0 && i < options.connections; i++)
        if (all[i]->begun - all[i]->received < ring && all[i]->out == request_size) until = earlier(until, due_at(all[i], all[i]->begun));
    int64_t left = until - now_ns();
    if (left < 0) left = 0;
    struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    int count = epoll_pwait2(epoll, events, 512, &timeout, NULL);
    for (int i = 0; i < count; i++) {
        struct connection *c = events[i].data.ptr;
        if (events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
        send_some(c);
    }
    for (int i = 0; paced && i < options.connections; i++) {
        struct connection *c = all[i];
        if (!(c->events & EPOLLIN)) {
            set_events(c, c->events | EPOLLIN);
            receive(c);
        }
        if (!(c->events & EPOLLOUT)) send_some(c);
    }
}

static uint64_t sent(void) {
    uint64_t sum = 0;
    for (int i = 0; i < options.connections; i++) sum += all[i]->begun;
    return sum;
}

/* In an open loop every request counts that fell due: also those that are not back, and those that could not even go. */
static void count_missing(int64_t now) {
    for (int i = 0; i < options.connections && options.per_second > 0; i++) {
        for (uint64_t k = all[i]->received;; k++) {
            int64_t due = due_at(all[i], k);
            if (due >= measure_until || (options.count && k >= options.count)) break;
            if (due < measure_from) continue;
            missing++;
            record(&whole, now - due);
        }
    }
}

static void say_measured(double seconds) {
    printf("{\"event\": \"measured\", \"answers\": %llu, \"missing\": %llu, \"bytes\": %llu, \"seconds\": %.6f, ", (unsigned long long)counted,
           (unsigned long long)missing, (unsigned long long)received_bytes, seconds);
    printf("\"first_p50_us\": %.1f, \"first_p99_us\": %.1f, \"first_max_us\": %.1f, ", percentile_us(&first, 0.5), percentile_us(&first, 0.99),
           (double)first.slowest / 1000);
    printf("\"whole_p50_us\": %.1f, \"whole_p99_us\": %.1f, \"whole_max_us\": %.1f}\n", percentile_us(&whole, 0.5), percentile_us(&whole, 0.99),
           (double)whole.slowest / 1000);
    fflush(stdout);
}

/* Everything that was due went, and everything that went came back. */
static int finished(void) {
    if (options.count) return received == options.count * (uint64_t)options.connections;
    for (int i = 0; i < options.connections && options.per_second > 0; i++)
        if (due_at(all[i], all[i]->begun) < measure_until) return 0;
    return received == sent();
}

static void run(void) {
    struct sockaddr_in address = parse_address(options.connect);
    all = allocate((size_t)options.connections * sizeof *all);
    int64_t opening = now_ns();
    for (int i = 0; i < options.connections; i++) all[i] = open_connection(i, &address);
    start = moved_ns = now_ns();
    measure_from = start + (int64_t)(options.warm_up * 1e9);
    measure_until = options.count ? INT64_MAX : measure_from + (int64_t)(options.seconds * 1e9);
    int64_t patience = (int64_t)(options.patience * 1e9);
    for (int i = 0; i < options.connections; i++) send_some(all[i]);
    int measuring = 0;
    while (options.count ? !finished() : now_ns() < measure_until) {
        if (!measuring && now_ns() >= measure_from) {
            measuring = 1;
            printf("{\"event\": \"measuring\", \"opening_ms\": %.3f}\n", (double)(start - opening) / 1e6);
            fflush(stdout);
        }
        turn(measuring ? measure_until : measure_from);
        if (options.count && now_ns() - moved_ns > patience)
            die("nothing moved for %.0f s: %llu of %llu answers came", options.patience, (unsigned long long)received,
                (unsigned long long)(options.count * (uint64_t)options.connections));
    }
    int64_t ended = now_ns();
    if (options.per_second == 0) say_measured((double)(ended - (options.count ? start : measure_from)) / 1e9);
    while (!finished() && now_ns() - (options.per_second > 0 ? ended : moved_ns) < patience) turn(INT64_MAX);
    if (options.per_second > 0) {
        count_missing(now_ns());
        say_measured(options.count ? (double)(ended - start) / 1e9 : options.seconds);
    }
    if (options.per_second == 0 && !finished())
        die("%llu requests went, %llu answers came", (unsigned long long)sent(), (unsigned long long)received);
    printf("{\"event\": \"done\", \"sent\": %llu, \"received\": %llu, \"seconds\": %.6f}\n", (unsigned long long)sent(), (unsigned long long)received,
           (double)(ended - start) / 1e9);
    fflush(stdout);
}

static void parse_options(int argc, char **argv) {
    options = (struct options){.connections = 1, .in_flight = 1, .request = BODY_HEAD, .warm_up = 0.5, .seconds = 2, .patience = 10};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--tls")) { prepare_tls(); continue; }
        const char *value = i + 1 < argc ? argv[++i] : "";
        if (!strcmp(name, "--connect")) options.connect = value;
        else if (!strcmp(name, "--connections")) options.connections = atoi(value);
        else if (!strcmp(name, "--in-flight")) options.in_flight = atoi(value);
        else if (!strcmp(name, "--segment")) options.segment = atoi(value);
        else if (!strcmp(name, "--request")) options.request = (size_t)atol(value);
        else if (!strcmp(name, "--answer")) options.answer = (size_t)atol(value);
        else if (!strcmp(name, "--count")) options.count = (uint64_t)atol(value);
        else if (!strcmp(name, "--warm-up")) options.warm_up = atof(value);
        else if (!strcmp(name, "--seconds")) options.seconds = atof(value);
        else if (!strcmp(name, "--read-rate")) options.read_rate = atof(value);
        else if (!strcmp(name, "--per-second")) options.per_second = atof(value);
        else if (!strcmp(name, "--patience")) options.patience = atof(value);
        else die("unknown option %s", name);
    }
    if (options.connect == NULL) die("fetch --connect HOST:PORT …");
    if (options.request < BODY_HEAD || (options.answer != 0 && options.answer < BODY_HEAD)) die("a body has at least %d bytes", BODY_HEAD);
    if (options.connections < 1 || options.in_flight < 1) die("--connections and --in-flight must be at least 1");
    if (options.count) options.warm_up = 0;
    request_size = options.request + 4;
    answer_size = (options.answer ? options.answer : options.request) + 4;
    ring = options.per_second > 0 ? 4096 : (uint64_t)options.in_flight;
}

/* On two cores we share ours with the upstream: with a short slice we run when bytes come, not when it has written all it can. Kernels that cannot are
 * as they are. */
static void come_first(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof attributes, .runtime = SLICE_NS};
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prepare_process();
    come_first();
    prctl(PR_SET_TIMERSLACK, 1000ul);
    make_pattern();
    epoll = epoll_create1(0);
    run();
    return 0;
}
