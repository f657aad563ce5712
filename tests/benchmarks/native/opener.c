/* Opens connections: many after each other, or many at once.
 *
 *     opener --connect HOST:PORT --slots 32 --warm-up 0.5 --seconds 2 [--tls [--resume]] [--rate CONNECTIONS_PER_SECOND]
 *     opener --connect HOST:PORT --hold 10000 [--tls [--certificate FILE --key FILE]]
 *
 * Churn: every slot connects, shakes hands, has one frame of `size` bytes echoed, ends in order (close-notify, FIN), waits for the other side's end, and
 * begins again. So a connection that counts was accepted, connected to the upstream, used in both directions and closed on both sides.
 * Time is taken from connect (with --rate: from when the connection was due) to the first byte that comes back.
 * --resume: every handshake but a slot's first offers the last ticket; how many were resumed is printed, and up to the reader to check.
 *
 * Hold: opens as many, one echoed frame each, prints {"event": "open"} and obeys lines of its standard input until that ends:
 *     burst BYTES COUNT      the first COUNT connections have one frame of that size echoed, eight connections at a time
 */
#include "times.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/prctl.h>

#define READ_SIZE (256 * 1024)
#define PATTERN_STEPS 1024
#define OPENING 64  /* connections that --hold opens at a time */
#define BURSTING 8  /* connections that have a burst under way at a time */

enum state { FREE, CONNECTING, SHAKING, EXCHANGING, ENDING, IDLE };

struct options {
    const char *connect, *cipher, *certificate, *key;
    int slots, hold, tls, resume;
    size_t size;
    double warm_up, seconds, rate;
};

struct slot {
    int fd, number;
    enum state state;
    uint32_t events;
    SSL *ssl;
    SSL_SESSION *session;
    char *frame; /* on its way: header and body */
    size_t sent, received;
    uint64_t rounds;
    int64_t due;
};

static struct options options;
static SSL_CTX *tls;
static struct sockaddr_in address;
static char *pattern;
static size_t pattern_size, frame_size;
static char scratch[READ_SIZE];
static int epoll, busy;
static uint64_t opened, closed, resumed, failed_resumes;
static int64_t measure_from = INT64_MAX, measure_until = INT64_MAX;

static void prepare_pattern(size_t body) {
    pattern_size = body + PATTERN_STEPS;
    free(pattern);
    pattern = allocate(pattern_size);
    fill_pattern(pattern, pattern_size);
    frame_size = body + 4;
}

static void set_events(struct slot *s, uint32_t events) {
    if (s->events != events) {
        s->events = events;
        watch(epoll, EPOLL_CTL_MOD, s->fd, events, s);
    }
}

/* 1: go on, -1: it would block, 0: the end. */
static int tls_result(struct slot *s, int result) {
    int error = SSL_get_error(s->ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        set_events(s, error == SSL_ERROR_WANT_WRITE ? EPOLLOUT : EPOLLIN);
        return -1;
    }
    if (error == SSL_ERROR_ZERO_RETURN || (error == SSL_ERROR_SYSCALL && ERR_peek_error() == 0)) return 0;
    if (s->state == ENDING) return 0;
    ERR_print_errors_fp(stderr);
    die("slot %d: TLS failed: %d", s->number, error);
}

static ssize_t read_bytes(struct slot *s) {
    if (s->ssl != NULL) {
        ERR_clear_error();
        int count = SSL_read(s->ssl, scratch, sizeof scratch);
        return count > 0 ? count : tls_result(s, count);
    }
    ssize_t count = recv(s->fd, scratch, sizeof scratch, 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    return count;
}

static ssize_t write_bytes(struct slot *s, const char *from, size_t size) {
    if (s->ssl != NULL) {
        ERR_clear_error();
        int count = SSL_write(s->ssl, from, size > 16384 ? 16384 : (int)size);
        return count > 0 ? count : tls_result(s, count);
    }
    ssize_t count = send(s->fd, from, size, MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    return count;
}

static void begin_exchange(struct slot *s) {
    uint32_t size = htonl((uint32_t)(frame_size - 4));
    s->state = EXCHANGING;
    s->sent = s->received = 0;
    s->frame = allocate(frame_size);
    memcpy(s->frame, &size, 4);
    memcpy(s->frame + 4, pattern + (s->rounds++ * 131 + (uint64_t)s->number * 17) % PATTERN_STEPS, frame_size - 4);
}

static void begin(struct slot *s, int64_t due) {
    s->due = due;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (s->fd < 0) die("socket: %s", strerror(errno));
    set_no_delay(s->fd);
    if (connect(s->fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) die("connect: %s", strerror(errno));
    s->state = CONNECTING;
    s->events = EPOLLOUT;
    watch(epoll, EPOLL_CTL_ADD, s->fd, EPOLLOUT, s);
    busy++;
}

static void finish(struct slot *s) {
    close(s->fd);
    if (s->ssl != NULL) SSL_free(s->ssl);
    s->ssl = NULL;
    s->state = FREE;
    busy--;
}

static int on_connected(struct slot *s) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) die("slot %d: connect: %s", s->number, strerror(error));
    if (!options.tls) {
        begin_exchange(s);
        return 1;
    }
    s->ssl = SSL_new(tls);
    SSL_set_app_data(s->ssl, s);
    SSL_set_fd(s->ssl, s->fd);
    SSL_set_connect_state(s->ssl);
    if (s->session != NULL) SSL_set_session(s->ssl, s->session);
    s->state = SHAKING;
    return 1;
}

static int on_handshake(struct slot *s) {
    ERR_clear_error();
    int result = SSL_do_handshake(s->ssl);
    if (result != 1) {
        if (tls_result(s, result) == 0) die("slot %d: closed while shaking hands", s->number);
        return 0;
    }
    if (s->session != NULL) {
        if (SSL_session_reused(s->ssl)) resumed++;
        else failed_resumes++;
    }
    begin_exchange(s);
    return 1;
}

/* 1: the next state can go on at once. */
static int on_exchange(struct slot *s) {
    while (s->sent < frame_size) {
        ssize_t count = write_bytes(s, s->frame + s->sent, frame_size - s->sent);
        if (count == 0) die("slot %d: closed while we wrote", s->number);
        if (count < 0) break;
        s->sent += (size_t)count;
    }
    for (;;) {
        ssize_t count = read_bytes(s);
        if (count == 0) die("slot %d: closed by the other side before its frame came back", s->number);
        if (count < 0) {
            set_events(s, EPOLLIN | (s->sent < frame_size ? EPOLLOUT : 0));
            return 0;
        }
        if (s->received == 0) {
            int64_t now = now_ns();
            if (now >= measure_from && now < measure_until) record(now - s->due);
        }
        if (s->received + (size_t)count > frame_size || memcmp(scratch, s->frame + s->received, (size_t)count) != 0)
            die("slot %d: its frame came back changed", s->number);
        s->received += (size_t)count;
        if (s->received == frame_size) break;
    }
    free(s->frame);
    s->frame = NULL;
    opened++;
    if (options.hold) {
        s->state = IDLE;
        set_events(s, EPOLLIN);
        busy--;
        return 0;
    }
    if (s->ssl != NULL) SSL_shutdown(s->ssl);
    shutdown(s->fd, SHUT_WR);
    s->state = ENDING;
    set_events(s, EPOLLIN);
    return 1;
}

static int on_end(struct slot *s) {
    ssize_t count;
    while ((count = read_bytes(s)) > 0) continue;
    if (count < 0) return 0;
    int64_t now = now_ns();
    if (now >= measure_from && now < measure_until) closed++;
    finish(s);
    return 0;
}

static void step(struct slot *s) {
    int more = 1;
    while (more) {
        switch (s->state) {
            case CONNECTING: more = on_connected(s); break;
            case SHAKING: more = on_handshake(s); break;
            case EXCHANGING: more = on_exchange(s); break;
            case ENDING: more = on_end(s); break;
            case IDLE: {
                /* tickets and key updates are read; data or an end is a fault */
                ssize_t count = read_bytes(s);
                if (count >= 0) die("slot %d: %s while it was idle", s->number, count ? "data" : "closed by the other side");
                more = 0;
                break;
            }
            case FREE: more = 0; break;
        }
    }
}

static int wait_some(int64_t until) {
    static struct epoll_event events[512];
    int64_t left = until - now_ns();
    if (left < 0) left = 0;
    struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    int count = epoll_pwait2(epoll, events, 512, &timeout, NULL);
    if (count < 0 && errno == ENOSYS) count = epoll_wait(epoll, events, 512, (int)(left / 1000000) + 1);
    int input = 0;
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == NULL) input = 1;
        else step(events[i].data.ptr);
    }
    return input;
}

static int on_new_session(SSL *ssl, SSL_SESSION *session) {
    struct slot *s = SSL_get_app_data(ssl);
    if (!options.resume) return 0;
    if (s->session != NULL) SSL_SESSION_free(s->session);
    s->session = session;
    return 1; /* ours now */
}

static void prepare_tls(void) {
    tls = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION);
    SSL_CTX_set_options(tls, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(tls, on_new_session);
    if (SSL_CTX_set_ciphersuites(tls, options.cipher) != 1) die("no such cipher suite: %s", options.cipher);
    if (options.certificate == NULL) return;
    if (SSL_CTX_use_certificate_chain_file(tls, options.certificate) != 1 || SSL_CTX_use_PrivateKey_file(tls, options.key, SSL_FILETYPE_PEM) != 1)
        die("no certificate and key: %s, %s", options.certificate, options.key);
}

static void churn(struct slot *all) {
    int64_t start = now_ns();
    measure_from = start + (int64_t)(options.warm_up * 1e9);
    measure_until = measure_from + (int64_t)(options.seconds * 1e9);
    uint64_t offered = 0;
    int measuring = 0;
    for (;;) {
        int64_t now = now_ns(), next = measuring ? measure_until : measure_from;
        if (!measuring && now >= measure_from) {
            measuring = 1;
            printf("{\"event\": \"measuring\"}\n");
            fflush(stdout);
        }
        if (now >= measure_until) break;
        for (int i = 0; i < options.slots; i++) {
            if (all[i].state != FREE) continue;
            int64_t due = now;
            if (options.rate > 0) {
                due = start + (int64_t)((double)offered * 1e9 / options.rate);
                if (due > now) {
                    if (due < next) next = due;
                    break;
                }
            }
            offered++;
            begin(&all[i], due);
        }
        wait_some(next);
    }
    sort_times();
    printf("{\"event\": \"measured\", \"connections\": %llu, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
           (unsigned long long)closed, (double)(measure_until - measure_from) / 1e9, percentile_ns(0.5) / 1e3, percentile_ns(0.99) / 1e3, percentile_ns(1) / 1e3);
    fflush(stdout);
    int64_t give_up = now_ns() + 10000000000;
    while (busy > 0) {
        wait_some(now_ns() + 100000000);
        if (now_ns() > give_up) die("%d connections never ended", busy);
    }
    printf("{\"event\": \"done\", \"opened\": %llu, \"resumed\": %llu, \"not_resumed\": %llu}\n", (unsigned long long)opened, (unsigned long long)resumed,
           (unsigned long long)failed_resumes);
    fflush(stdout);
}

static void burst(struct slot *all, size_t body, int count) {
    int64_t give_up = now_ns() + 300000000000;
    prepare_pattern(body);
    for (int next = 0; next < count || busy > 0;) {
        while (next < count && busy < BURSTING) {
            busy++;
            begin_exchange(&all[next]);
            step(&all[next++]);
        }
        wait_some(now_ns() + 100000000);
        if (now_ns() > give_up) die("the burst did not end");
    }
    printf("{\"event\": \"burst\"}\n");
    fflush(stdout);
}

static void hold(struct slot *all) {
    int64_t give_up = now_ns() + 120000000000;
    for (int next = 0; next < options.hold || busy > 0;) {
        while (next < options.hold && busy < OPENING) begin(&all[next++], 0);
        wait_some(now_ns() + 100000000);
        if (now_ns() > give_up) die("%d connections did not open", busy);
    }
    printf("{\"event\": \"open\", \"connections\": %d}\n", options.hold);
    fflush(stdout);
    watch(epoll, EPOLL_CTL_ADD, 0, EPOLLIN, NULL);
    char line[128];
    for (;;) {
        if (!wait_some(now_ns() + 1000000000)) continue;
        ssize_t count = read(0, line, sizeof line - 1);
        if (count <= 0) return;
        line[count] = 0;
        size_t body;
        int some;
        if (sscanf(line, "burst %zu %d", &body, &some) != 2 || some > options.hold) die("not a command: %s", line);
        burst(all, body, some);
    }
}

static void parse_options(int argc, char **argv) {
    options = (struct options){.slots = 32, .size = 100, .warm_up = 0.5, .seconds = 2, .cipher = "TLS_AES_128_GCM_SHA256"};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--tls")) { options.tls = 1; continue; }
        if (!strcmp(name, "--resume")) { options.resume = 1; continue; }
        const char *value = i + 1 < argc ? argv[++i] : "";
        if (!strcmp(name, "--connect")) options.connect = value;
        else if (!strcmp(name, "--certificate")) options.certificate = value;
        else if (!strcmp(name, "--key")) options.key = value;
        else if (!strcmp(name, "--slots")) options.slots = atoi(value);
        else if (!strcmp(name, "--hold")) options.hold = atoi(value);
        else if (!strcmp(name, "--size")) options.size = (size_t)atol(value);
        else if (!strcmp(name, "--warm-up")) options.warm_up = atof(value);
        else if (!strcmp(name, "--seconds")) options.seconds = atof(value);
        else if (!strcmp(name, "--rate")) options.rate = atof(value);
        else die("unknown option %s", name);
    }
    if (options.connect == NULL) die("opener --connect HOST:PORT [--slots N | --hold N] …");
    if ((options.certificate == NULL) != (options.key == NULL)) die("--certificate and --key go together");
    if (options.slots < 1 || options.hold < 0 || options.size < 1) die("--slots and --size must be at least 1");
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prepare_process();
    prctl(PR_SET_TIMERSLACK, 1000ul);
    epoll = epoll_create1(0);
    address = parse_address(options.connect);
    if (options.tls) prepare_tls();
    prepare_pattern(options.size);
    int count = options.hold ? options.hold : options.slots;
    struct slot *all = allocate((size_t)count * sizeof *all);
    for (int i = 0; i < count; i++) all[i].number = i;
    if (options.hold) hold(all);
    else churn(all);
    return 0;
}
