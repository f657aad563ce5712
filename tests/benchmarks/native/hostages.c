/* Clients that hold what they can and give nothing back, in equal numbers of each kind:
 *     silent   announces a large frame and says no more
 *     trickle  announces one and sends a byte each second
 *     crawl    announces one and sends 2 KiB each second, a little more than framegate's `min_rate`
 *     sip      asks for a large answer and reads 1 KiB each second of it
 *     deaf     asks for a large answer and never reads
 *
 *     hostages --connect HOST:PORT --count 1000 --announce BYTES --answer BYTES [--segment BYTES] [--tls]
 *
 * Whoever is closed comes back at once, as somebody would who means it. Prints {"event": "open"} when all have done the first they do, and
 * {"event": "done", …} with how many of each kind were closed, when its standard input ends.
 */
#include "client.h"

#define TICK_NS 50000000
#define SMALL_BUFFER 16384

enum kind { SILENT, TRICKLE, CRAWL, SIP, DEAF, KINDS };

enum state { CLOSED, CONNECTING, SHAKING, STANDING };

static const char *names[KINDS] = {"silent", "trickle", "crawl", "sip", "deaf"};
static const double rates[KINDS] = {0, 1, 2048, 1024, 0}; /* bytes a second */

struct hostage {
    int fd, number;
    enum kind kind;
    enum state state;
    SSL *ssl;
    size_t out, announced; /* of what it sends at once: HEAD or 4 bytes; of the body, after that */
    int64_t since;         /* standing; when its rate began to count */
    double moved;
};

static struct {
    const char *connect;
    int count, segment;
    size_t announce, answer;
} options;
static struct sockaddr_in address;
static uint64_t closed[KINDS], refused;
static char scratch[SMALL_BUFFER];
static int epoll, standing, told;

static void leave(struct hostage *h) {
    if (h->state == STANDING) {
        standing--;
        closed[h->kind]++;
    } else {
        refused++;
    }
    if (h->ssl != NULL) SSL_free(h->ssl);
    close(h->fd);
    h->ssl = NULL;
    h->state = CLOSED;
}

static void come(struct hostage *h) {
    int small = SMALL_BUFFER;
    h->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (h->fd < 0) die("socket: %s", strerror(errno));
    set_segment(h->fd, options.segment);
    if (h->kind >= SIP) setsockopt(h->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    h->out = h->announced = 0;
    h->moved = 0;
    h->state = CONNECTING;
    if (connect(h->fd, (const struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) {
        leave(h);
        return;
    }
    set_no_delay(h->fd);
    if (tls != NULL) h->ssl = new_tls(h->fd);
    watch(epoll, EPOLL_CTL_ADD, h->fd, EPOLLOUT | EPOLLRDHUP, h);
}

/* Its first bytes: a header alone, or a request. */
static void speak(struct hostage *h) {
    unsigned char head[HEAD];
    int asks = h->kind >= SIP;
    size_t size = asks ? HEAD : 4;
    make_head(head, asks ? BODY_HEAD : options.announce, MAGIC, options.answer, (uint64_t)h->number << 32);
    ssize_t count = write_bytes(h->fd, h->ssl, head + h->out, size - h->out);
    if (count == 0) {
        leave(h);
        return;
    }
    if (count > 0) h->out += (size_t)count;
    if (h->out < size) return;
    h->state = STANDING;
    h->since = now_ns();
    standing++;
    watch(epoll, EPOLL_CTL_MOD, h->fd, EPOLLRDHUP, h); /* it hears of its end, and of nothing else */
}

static void go_on(struct hostage *h) {
    if (h->state == CONNECTING) {
        int error = 0;
        socklen_t length = sizeof error;
        getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &error, &length);
        if (error != 0) {
            leave(h);
            return;
        }
        h->state = SHAKING;
    }
    if (h->ssl != NULL && !SSL_is_init_finished(h->ssl)) {
        int result = SSL_do_handshake(h->ssl);
        if (result != 1) {
            if (io_result(h->ssl, result) == 0) leave(h);
            else watch(epoll, EPOLL_CTL_MOD, h->fd, (SSL_want_write(h->ssl) ? EPOLLOUT : EPOLLIN) | EPOLLRDHUP, h);
            return;
        }
    }
    speak(h);
}

/* As much as its rate gives by now. */
static void move_some(struct hostage *h, int64_t now) {
    double rate = rates[h->kind], due = rate * (double)(now - h->since) / 1e9 - h->moved;
    if (rate == 0 || due < 1) return;
    size_t size = due < sizeof scratch ? (size_t)due : sizeof scratch;
    ssize_t count = h->kind == SIP ? read_bytes(h->fd, h->ssl, scratch, size) : write_bytes(h->fd, h->ssl, scratch, size);
    if (count == 0) leave(h);
    else if (count > 0) h->moved += (double)count;
}

static void parse_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--tls")) { prepare_tls(); continue; }
        const char *value = i + 1 < argc ? argv[++i] : "";
        if (!strcmp(name, "--connect")) options.connect = value;
        else if (!strcmp(name, "--count")) options.count = atoi(value);
        else if (!strcmp(name, "--segment")) options.segment = atoi(value);
        else if (!strcmp(name, "--announce")) options.announce = (size_t)atol(value);
        else if (!strcmp(name, "--answer")) options.answer = (size_t)atol(value);
        else die("unknown option %s", name);
    }
    if (options.connect == NULL || options.count < 1 || options.announce < 1 || options.answer < BODY_HEAD)
        die("hostages --connect HOST:PORT --count N --announce BYTES --answer BYTES");
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prepare_process();
    address = parse_address(options.connect);
    epoll = epoll_create1(0);
    struct hostage *all = allocate((size_t)options.count * sizeof *all), over = {0};
    struct epoll_event events[512];
    watch(epoll, EPOLL_CTL_ADD, 0, EPOLLIN, &over);
    for (int i = 0; i < options.count; i++) all[i] = (struct hostage){.number = i, .kind = (enum kind)(i % KINDS)};
    int64_t next = now_ns();
    for (;;) {
        int64_t now = now_ns();
        if (now >= next) {
            int opening = 0; /* a backlog's worth at a time */
            for (int i = 0; i < options.count; i++) {
                if (all[i].state == STANDING) move_some(&all[i], now);
                else if (all[i].state == CLOSED && opening++ < 128) come(&all[i]);
            }
            next += TICK_NS;
            if (next < now) next = now + TICK_NS;
        }
        if (!told && standing == options.count) {
            told = 1;
            printf("{\"event\": \"open\"}\n");
            fflush(stdout);
        }
        int left = (int)((next - now_ns()) / 1000000);
        int count = epoll_wait(epoll, events, 512, left < 0 ? 0 : left + 1);
        for (int i = 0; i < count; i++) {
            struct hostage *h = events[i].data.ptr;
            if (h == &over) {
                printf("{\"event\": \"done\", \"standing\": %d, \"refused\": %llu", standing, (unsigned long long)refused);
                for (int k = 0; k < KINDS; k++) printf(", \"%s\": %llu", names[k], (unsigned long long)closed[k]);
                printf("}\n");
                return 0;
            }
            if (h->state == CLOSED) continue;
            if (h->state == STANDING) leave(h);
            else go_on(h);
        }
    }
}
