/* The load generator and the echo server of the bench.
 *
 *     loadgen --connect HOST:PORT --connections 50 --in-flight 1 --size 100 --warm-up 1 --seconds 3 [--tls] [--rate FRAMES_PER_SECOND]
 *     loadgen --echo --listen HOST:PORT [--tls --certificate FILE --key FILE]
 *
 * Every frame is [int32 size][body]; `size` counts the body. A body holds its sequence number, its connection's number and a pattern that differs from
 * frame to frame; each frame that comes back is compared byte for byte with what was sent, in order. One difference ends the run with exit code 1.
 *
 * Closed loop (the default): every connection keeps `in-flight` frames under way; an answer is what lets the next frame go. Latency is measured from the
 * moment a frame is handed to the socket's queue.
 * Open loop (--rate): frames fall due at a steady rate, on the connections in turn, whether answers came or not; latency counts from the moment a frame
 * fell due, so a stall of the proxy shows in every frame that it held up. `in-flight` then only bounds the queue of a connection.
 *
 * Prints {"event": "measuring"} when the warm-up ends and {"event": "measured", …} when the time is over, each at once, so that whoever started us can
 * read the candidate's processor time at both moments.
 */
#include "sockets.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/prctl.h>

#define READ_SIZE (256 * 1024)
#define PATTERN_STEPS 1024

struct options {
    const char *connect, *listen, *certificate, *key, *cipher;
    int connections, in_flight, echo, tls;
    size_t size;
    double warm_up, seconds, rate;
};

struct connection {
    int fd, number, connected;
    uint32_t events;
    SSL *ssl;
    char *out; /* frames built and not written: out[out_start, out_end) */
    size_t out_start, out_end;
    size_t refused; /* bytes of the last TLS write that must be repeated unchanged */
    char *in;       /* received and not parsed: in[0, in_size) */
    size_t in_size;
    uint64_t sent, received;
    int64_t *due; /* ring: when the frames under way fell due */
};

/* ---- latency: 64 linear steps in each power of two of nanoseconds, 1.6 % wide ---- */

static uint64_t histogram[64 * 64];
static int64_t slowest;

static void record(int64_t ns) {
    uint64_t value = ns < 64 ? 64 : (uint64_t)ns;
    if (ns > slowest) slowest = ns;
    int power = 63 - __builtin_clzll(value);
    histogram[power * 64 + (int)((value >> (power - 6)) & 63)]++;
}

static double percentile_us(uint64_t total, double share) {
    uint64_t wanted = (uint64_t)((double)total * share), seen = 0;
    for (int i = 0; i < 64 * 64; i++) {
        seen += histogram[i];
        if (seen > wanted) return (double)((64ull + (uint64_t)(i % 64)) << (i / 64) >> 6) / 1000.0;
    }
    return 0;
}

/* ---- frames ---- */

static struct options options;
static SSL_CTX *tls;
static char *pattern;
static char scratch[READ_SIZE];
static const size_t header_size = 16; /* of a frame: what comes before the pattern */
static size_t frame_size, ring_size;
static int epoll;
static uint64_t counted;
static int64_t measure_from, measure_until;

static void make_header(unsigned char *to, const struct connection *c, uint64_t sequence) {
    uint32_t size = htonl((uint32_t)options.size);
    uint64_t number = htobe64(sequence);
    uint32_t connection = htonl((uint32_t)c->number);
    memcpy(to, &size, 4);
    memcpy(to + 4, &number, 8);
    memcpy(to + 12, &connection, 4);
}

static const char *pattern_of(const struct connection *c, uint64_t sequence) {
    return pattern + (sequence * 131 + (uint64_t)c->number * 17) % PATTERN_STEPS;
}

static void append_frame(struct connection *c, int64_t due) {
    if (c->out_end + frame_size > ring_size * frame_size) {
        memmove(c->out, c->out + c->out_start, c->out_end - c->out_start);
        c->out_end -= c->out_start;
        c->out_start = 0;
    }
    make_header((unsigned char *)c->out + c->out_end, c, c->sent);
    memcpy(c->out + c->out_end + header_size, pattern_of(c, c->sent), frame_size - header_size);
    c->out_end += frame_size;
    c->due[c->sent % ring_size] = due;
    c->sent++;
}

static void check_frame(struct connection *c, const char *frame, int64_t now) {
    unsigned char expected[16];
    if (c->received >= c->sent) die("connection %d: a frame came back that was never sent", c->number);
    make_header(expected, c, c->received);
    if (memcmp(frame, expected, header_size) != 0) die("connection %d: the header of frame %llu came back changed", c->number, (unsigned long long)c->received);
    if (memcmp(frame + header_size, pattern_of(c, c->received), frame_size - header_size) != 0)
        die("connection %d: the body of frame %llu came back changed", c->number, (unsigned long long)c->received);
    int64_t due = c->due[c->received % ring_size];
    c->received++;
    if (now >= measure_from && now < measure_until) {
        counted++;
        record(now - due);
    }
}

/* ---- bytes; -1 would block, 0 end, else a count ---- */

static ssize_t tls_result(SSL *ssl, int result) {
    int error = SSL_get_error(ssl, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return -1;
    if (error == SSL_ERROR_ZERO_RETURN || (error == SSL_ERROR_SYSCALL && ERR_peek_error() == 0)) return 0;
    if (options.echo) return 0; /* one bad client is not the end of the server */
    ERR_print_errors_fp(stderr);
    die("TLS failed: %d", error);
}

static ssize_t read_bytes(struct connection *c, char *to, size_t size) {
    if (c->ssl != NULL) {
        ERR_clear_error();
        int count = SSL_read(c->ssl, to, size > INT32_MAX ? INT32_MAX : (int)size);
        return count > 0 ? count : tls_result(c->ssl, count);
    }
    ssize_t count = recv(c->fd, to, size, 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    return count;
}

static ssize_t write_bytes(struct connection *c, const char *from, size_t size) {
    if (c->ssl != NULL) {
        if (size > 16384) size = 16384;
        if (c->refused) size = c->refused;
        ERR_clear_error();
        int count = SSL_write(c->ssl, from, (int)size);
        c->refused = count > 0 ? 0 : size;
        return count > 0 ? count : tls_result(c->ssl, count);
    }
    ssize_t count = send(c->fd, from, size, MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    return count;
}

static void set_events(struct connection *c, uint32_t events) {
    if (c->events != events) {
        c->events = events;
        watch(epoll, EPOLL_CTL_MOD, c->fd, events, c);
    }
}

/* Write what waits; 0 when the peer is gone. */
static int write_out(struct connection *c) {
    while (c->out_start < c->out_end) {
        ssize_t count = write_bytes(c, c->out + c->out_start, c->out_end - c->out_start);
        if (count == 0) return 0;
        if (count < 0) break;
        c->out_start += (size_t)count;
        if (c->ssl == NULL && c->out_start < c->out_end) break;
    }
    if (c->out_start == c->out_end) c->out_start = c->out_end = 0;
    return 1;
}

static SSL *new_tls(int fd, int server) {
    SSL *ssl = SSL_new(tls);
    SSL_set_fd(ssl, fd);
    if (server) SSL_set_accept_state(ssl);
    else SSL_set_connect_state(ssl);
    return ssl;
}

static void prepare_tls(void) {
    tls = SSL_CTX_new(options.echo ? TLS_server_method() : TLS_client_method());
    SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION);
    SSL_CTX_set_options(tls, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_read_ahead(tls, 1);
    SSL_CTX_set_default_read_buffer_len(tls, 64 * 1024);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (options.cipher != NULL && SSL_CTX_set_ciphersuites(tls, options.cipher) != 1) die("no such cipher suite: %s", options.cipher);
    if (!options.echo) return;
    SSL_CTX_set_num_tickets(tls, 0);
    if (SSL_CTX_use_certificate_chain_file(tls, options.certificate) != 1) die("cannot read %s", options.certificate);
    if (SSL_CTX_use_PrivateKey_file(tls, options.key, SSL_FILETYPE_PEM) != 1) die("cannot read %s", options.key);
}

/* ---- the echo server: bytes back as they come; what the socket refuses stops the reading ---- */

static void echo_close(struct connection *c) {
    close(c->fd);
    if (c->ssl != NULL) SSL_free(c->ssl);
    free(c->out);
    free(c);
}

/* 0: closed */
static int echo_event(struct connection *c) {
    for (;;) {
        if (!write_out(c)) return 0;
        if (c->out_end > 0) {
            set_events(c, EPOLLOUT);
            return 1;
        }
        set_events(c, EPOLLIN);
        ssize_t count = read_bytes(c, scratch, sizeof scratch);
        if (count == 0) return 0;
        if (count < 0) return 1;
        if (c->ssl == NULL) {
            ssize_t done = send(c->fd, scratch, (size_t)count, MSG_NOSIGNAL);
            if (done < 0 && errno != EAGAIN && errno != EINTR) return 0;
            if (done == count) return 1;
            if (done < 0) done = 0;
            c->out_end = (size_t)(count - done);
            memcpy(c->out, scratch + done, c->out_end);
        } else {
            /* a TLS record is small: gather what is decrypted already, so that it goes out in as few records */
            size_t size = (size_t)count;
            while (size < sizeof scratch && SSL_has_pending(c->ssl)) {
                ssize_t more = read_bytes(c, scratch + size, sizeof scratch - size);
                if (more <= 0) break;
                size += (size_t)more;
            }
            memcpy(c->out, scratch, size);
            c->out_end = size;
        }
    }
}

static void serve_echo(void) {
    int listener = listen_and_tell(options.listen);
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    struct epoll_event events[512];
    for (;;) {
        int count = epoll_wait(epoll, events, 512, -1);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (c != NULL) {
                if (!echo_event(c)) echo_close(c);
                continue;
            }
            for (int n = 0; n < 64; n++) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (fd < 0) break;
                set_no_delay(fd);
                c = allocate(sizeof *c);
                c->fd = fd;
                c->events = EPOLLIN;
                c->out = allocate(READ_SIZE);
                if (options.tls) c->ssl = new_tls(fd, 1);
                watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, c);
            }
        }
    }
}

/* ---- the load ---- */

static void receive(struct connection *c) {
    int64_t now = 0;
    do {
        size_t room = frame_size > READ_SIZE / 2 ? frame_size + READ_SIZE : 2 * READ_SIZE;
        ssize_t count = read_bytes(c, c->in + c->in_size, room - c->in_size);
        if (count == 0) die("connection %d: closed by the other side after %llu frames", c->number, (unsigned long long)c->received);
        if (count < 0) break;
        c->in_size += (size_t)count;
        now = now_ns();
        size_t start = 0;
        while (c->in_size - start >= frame_size) {
            check_frame(c, c->in + start, now);
            start += frame_size;
            if (options.rate == 0 && now < measure_until) append_frame(c, now);
        }
        if (start > 0) {
            c->in_size -= start;
            memmove(c->in, c->in + start, c->in_size);
        }
    } while (c->ssl != NULL && SSL_has_pending(c->ssl));
}

static void send_out(struct connection *c) {
    if (!write_out(c)) die("connection %d: closed while we wrote", c->number);
    set_events(c, EPOLLIN | (c->out_end > 0 ? EPOLLOUT : 0));
}

static struct connection *open_connection(int number, const struct sockaddr_in *address) {
    struct connection *c = allocate(sizeof *c);
    c->number = number;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0) die("socket: %s", strerror(errno));
    if (connect(c->fd, (const struct sockaddr *)address, sizeof *address) < 0) die("connect: %s", strerror(errno));
    set_no_delay(c->fd);
    if (options.tls) {
        c->ssl = new_tls(c->fd, 0);
        if (SSL_do_handshake(c->ssl) != 1) {
            ERR_print_errors_fp(stderr);
            die("connection %d: the TLS handshake failed", number);
        }
    }
    set_non_blocking(c->fd);
    c->out = allocate(ring_size * frame_size);
    c->in = allocate((frame_size > READ_SIZE / 2 ? frame_size + READ_SIZE : 2 * READ_SIZE));
    c->due = allocate(ring_size * sizeof *c->due);
    c->events = EPOLLIN;
    watch(epoll, EPOLL_CTL_ADD, c->fd, EPOLLIN, c);
    return c;
}

/* Frames that fell due since the last time, on the connections in turn; returns when the next one does. */
static int64_t offer_due(struct connection **all, int64_t start, uint64_t *offered) {
    double interval = 1e9 / options.rate;
    int64_t now = now_ns();
    for (;;) {
        int64_t due = start + (int64_t)((double)*offered * interval);
        struct connection *c = all[*offered % (uint64_t)options.connections];
        if (due > now || now >= measure_until) return due;
        if (c->sent - c->received >= ring_size) return now + 50000; /* its queue is full: the frame goes later, and counts from when it was due */
        append_frame(c, due);
        (*offered)++;
        send_out(c);
    }
}

static void wait_for(struct epoll_event *events, int *count, int64_t until) {
    int64_t left = until - now_ns();
    if (left < 0) left = 0;
    struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    *count = epoll_pwait2(epoll, events, 512, &timeout, NULL);
    if (*count < 0 && errno == ENOSYS) *count = epoll_wait(epoll, events, 512, (int)(left / 1000000));
}

static void run_load(void) {
    struct sockaddr_in address = parse_address(options.connect);
    struct connection **all = allocate((size_t)options.connections * sizeof *all);
    for (int i = 0; i < options.connections; i++) all[i] = open_connection(i, &address);
    int64_t start = now_ns();
    measure_from = start + (int64_t)(options.warm_up * 1e9);
    measure_until = measure_from + (int64_t)(options.seconds * 1e9);
    int64_t give_up = measure_until + 10000000000;
    if (options.rate == 0)
        for (int i = 0; i < options.connections; i++) {
            for (int k = 0; k < options.in_flight; k++) append_frame(all[i], now_ns());
            send_out(all[i]);
        }
    struct epoll_event events[512];
    uint64_t offered = 0;
    int measuring = 0;
    for (;;) {
        int64_t now = now_ns(), next = measure_until;
        if (!measuring && now >= measure_from) {
            measuring = 1;
            printf("{\"event\": \"measuring\"}\n");
            fflush(stdout);
        }
        if (now >= measure_until) break;
        if (!measuring) next = measure_from;
        if (options.rate > 0) {
            int64_t due = offer_due(all, start, &offered);
            if (due < next) next = due;
        }
        int count;
        wait_for(events, &count, next);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
            if (c->out_end > 0) send_out(c);
        }
    }
    printf("{\"event\": \"measured\", \"frames\": %llu, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"max_us\": %.1f}\n",
           (unsigned long long)counted, (double)(measure_until - measure_from) / 1e9, percentile_us(counted, 0.5), percentile_us(counted, 0.99),
           percentile_us(counted, 0.999), (double)slowest / 1000.0);
    fflush(stdout);
    /* what is under way must come back, too: nothing is lost, and the candidate's counters can be compared */
    uint64_t sent = 0, received = 0;
    for (;;) {
        sent = received = 0;
        for (int i = 0; i < options.connections; i++) {
            sent += all[i]->sent;
            received += all[i]->received;
        }
        if (sent == received) break;
        if (now_ns() > give_up) die("%llu frames were sent, %llu came back", (unsigned long long)sent, (unsigned long long)received);
        int count;
        wait_for(events, &count, now_ns() + 100000000);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
            if (c->out_end > 0) send_out(c);
        }
    }
    printf("{\"event\": \"done\", \"sent\": %llu, \"received\": %llu, \"tls\": \"%s\"}\n", (unsigned long long)sent, (unsigned long long)received,
           options.tls ? SSL_get_cipher(all[0]->ssl) : "");
    fflush(stdout);
}

static void parse_options(int argc, char **argv) {
    options = (struct options){.connections = 1, .in_flight = 1, .size = 100, .warm_up = 1, .seconds = 3, .cipher = "TLS_AES_128_GCM_SHA256"};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--echo")) { options.echo = 1; continue; }
        if (!strcmp(name, "--tls")) { options.tls = 1; continue; }
        const char *value = i + 1 < argc ? argv[++i] : "";
        if (!strcmp(name, "--connect")) options.connect = value;
        else if (!strcmp(name, "--listen")) options.listen = value;
        else if (!strcmp(name, "--certificate")) options.certificate = value;
        else if (!strcmp(name, "--key")) options.key = value;
        else if (!strcmp(name, "--cipher")) options.cipher = value;
        else if (!strcmp(name, "--connections")) options.connections = atoi(value);
        else if (!strcmp(name, "--in-flight")) options.in_flight = atoi(value);
        else if (!strcmp(name, "--size")) options.size = (size_t)atol(value);
        else if (!strcmp(name, "--warm-up")) options.warm_up = atof(value);
        else if (!strcmp(name, "--seconds")) options.seconds = atof(value);
        else if (!strcmp(name, "--rate")) options.rate = atof(value);
        else die("unknown option %s", name);
    }
    if (options.echo ? options.listen == NULL : options.connect == NULL) die("loadgen --connect HOST:PORT … | --echo --listen HOST:PORT …");
    if (options.size < 12 || options.size > INT32_MAX) die("--size is the body of a frame, 12 bytes to 2 GiB - 1");
    if (options.connections < 1 || options.in_flight < 1) die("--connections and --in-flight must be at least 1");
    frame_size = options.size + 4;
    ring_size = (size_t)options.in_flight;
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prepare_process();
    prctl(PR_SET_TIMERSLACK, 1000ul);
    epoll = epoll_create1(0);
    if (options.tls) prepare_tls();
    if (options.echo) {
        serve_echo();
        return 0;
    }
    pattern = allocate(frame_size + PATTERN_STEPS);
    fill_pattern(pattern, frame_size + PATTERN_STEPS);
    run_load();
    return 0;
}
