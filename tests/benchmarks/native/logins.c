/* Logs in again and again, as Kafka's clients do: SaslHandshake, then SCRAM-SHA-512 or PLAIN in SaslAuthenticate.
 *
 *     logins --connect HOST:PORT --user NAME --password WORD [--mechanism PLAIN] --rate LOGINS_PER_SECOND --warm-up 0.5 --seconds 60 [--size 100]
 *            [--patience SECONDS]
 *
 * The loop is open: logins fall due at a steady rate, whether others came through or not; a login's time counts from when it was due. Who is let in has
 * one frame of `size` bytes echoed, compares it, and ends in order. What is made of the password is made once, with the salt that the server names first:
 * afterwards a proof costs two HMACs, and so does the look at the server's signature, which must be right.
 *
 * What becomes of a login: `through`, `refused` (it was told so), `closed` (the connection ended without a word), `missing` (neither, `patience` after
 * the end). Those count that fell due in the time that was measured. `late` are logins that began
 * a tenth of a second after they were due, for want of a free slot or of processor time.
 */
#include "times.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/prctl.h>

#define SLOTS 8192
#define ROOM 1024
#define KEY 64 /* bytes of a SHA-512 */
#define LATE_NS 100000000
#define FETCH 0x00010004 /* a request and its version */
#define NONE 0
#define AUTHENTICATION_FAILED 58
#define UNKNOWN_SERVER_ERROR -1 /* nobody could check it: the line is full */

enum state { FREE, CONNECTING, ASKING, FIRST, FINAL, EXCHANGING, ENDING };
enum outcome { THROUGH, REFUSED, CLOSED, OUTCOMES };

struct options {
    const char *connect, *user, *password;
    int plain;
    size_t size;
    double rate, warm_up, seconds, patience;
};

struct slot {
    int fd;
    enum state state;
    uint32_t events;
    int64_t due;
    int is_out; /* with a result */
    size_t got;
    char bare[256], first[512], expected[128]; /* of the exchange: client-first without its header, server-first, the signature that must come */
    unsigned char frame[ROOM];
};

static struct options options;
static struct sockaddr_in address;
static struct slot *all, **unused;
static int free_count, epoll;
static uint64_t nonces, due_count, late, outcomes[OUTCOMES], counted[OUTCOMES], measured_due;
static int64_t start, measure_from, measure_until;
static unsigned char salted[KEY], client_key[KEY], stored_key[KEY], server_key[KEY];
static char known_salt[256];
static long known_iterations;

static void give_up_slot(struct slot *s) {
    close(s->fd);
    s->state = FREE;
    unused[free_count++] = s;
}

static void came_out(struct slot *s, enum outcome outcome) {
    if (s->is_out) return;
    s->is_out = 1;
    outcomes[outcome]++;
    if (s->due < measure_from || s->due >= measure_until) return;
    counted[outcome]++;
    if (outcome == THROUGH) record(now_ns() - s->due);
}

static void hmac(const unsigned char *key, const char *text, size_t size, unsigned char *to) {
    if (HMAC(EVP_sha512(), key, KEY, (const unsigned char *)text, size, to, NULL) == NULL) die("no HMAC");
}

/* The keys of the password, for the salt that the server names; made again only when it names another one. */
static void make_keys(const char *salt, long iterations) {
    unsigned char raw[256];
    if (!strcmp(salt, known_salt) && iterations == known_iterations) return;
    size_t size = strlen(salt);
    if (size % 4 || size >= sizeof known_salt) die("no salt: %s", salt);
    int count = EVP_DecodeBlock(raw, (const unsigned char *)salt, (int)size);
    if (count < 0) die("no salt: %s", salt);
    count -= (salt[size - 1] == '=') + (salt[size - 2] == '=');
    if (PKCS5_PBKDF2_HMAC(options.password, (int)strlen(options.password), raw, count, (int)iterations, EVP_sha512(), KEY, salted) != 1) die("no PBKDF2");
    hmac(salted, "Client Key", 10, client_key);
    hmac(salted, "Server Key", 10, server_key);
    if (EVP_Digest(client_key, KEY, stored_key, NULL, EVP_sha512(), NULL) != 1) die("no SHA-512");
    strcpy(known_salt, salt);
    known_iterations = iterations;
}

/* Bytes put together; all of it fits a frame of ours. */
static size_t put_int(unsigned char *to, size_t at, int bytes, int64_t value) {
    for (int i = 0; i < bytes; i++) to[at + (size_t)i] = (unsigned char)(value >> 8 * (bytes - 1 - i));
    return at + (size_t)bytes;
}

static size_t put_text(unsigned char *to, size_t at, int width, const char *text, size_t size) {
    at = put_int(to, at, width, (int64_t)size);
    if (at + size > ROOM) die("too long: %.40s", text);
    memcpy(to + at, text, size);
    return at + size;
}

static int64_t take_int(const unsigned char *from, size_t at, int bytes) {
    int64_t value = from[at] & 0x80 ? -1 : 0;
    for (int i = 0; i < bytes; i++) value = value * 256 + from[at + (size_t)i];
    return value;
}

static void set_events(struct slot *s, uint32_t events) {
    if (s->events == events) return;
    s->events = events;
    watch(epoll, EPOLL_CTL_MOD, s->fd, events, s);
}

/* A small message into an empty socket: it takes it whole, or the connection is over. */
static void say(struct slot *s, const unsigned char *message, size_t size, enum state next) {
    s->got = 0;
    if (send(s->fd, message, size, MSG_NOSIGNAL) == (ssize_t)size) {
        s->state = next;
        set_events(s, EPOLLIN);
        return;
    }
    came_out(s, CLOSED);
    give_up_slot(s);
}

static void request(struct slot *s, int key, const char *text, size_t size, int width, enum state next) {
    unsigned char message[ROOM];
    size_t at = put_int(message, 4, 2, key);
    at = put_int(message, at, 2, 1);    /* the version */
    at = put_int(message, at, 4, next); /* the correlation id */
    at = put_text(message, at, 2, "storm", 5);
    at = put_text(message, at, width, text, size);
    put_int(message, 0, 4, (int64_t)at - 4);
    say(s, message, at, next);
}

static void say_mechanism(struct slot *s) {
    const char *name = options.plain ? "PLAIN" : "SCRAM-SHA-512";
    request(s, 17, name, strlen(name), 2, ASKING);
}

static void say_token(struct slot *s, const char *token, size_t size, enum state next) { request(s, 36, token, size, 4, next); }

static void say_first(struct slot *s) {
    char token[sizeof s->bare + 8];
    if (options.plain) {
        int size = snprintf(token, sizeof token, "%c%s%c%s", 0, options.user, 0, options.password);
        say_token(s, token, (size_t)size, FINAL);
        return;
    }
    snprintf(s->bare, sizeof s->bare, "n=%s,r=storm%d.%llu", options.user, (int)getpid(), (unsigned long long)nonces++);
    int size = snprintf(token, sizeof token, "n,,%s", s->bare);
    say_token(s, token, (size_t)size, FIRST);
}

static void say_final(struct slot *s) {
    char nonce[256], salt[256], unproven[320], exchange[1200], token[512];
    unsigned char signature[KEY], proof[KEY], encoded[128];
    long iterations;
    if (sscanf(s->first, "r=%255[^,],s=%255[^,],i=%ld", nonce, salt, &iterations) != 3) die("no server-first message: %s", s->first);
    if (strncmp(nonce, strstr(s->bare, "r=") + 2, strlen(strstr(s->bare, "r=") + 2)) != 0) die("the nonce is not ours: %s", nonce);
    make_keys(salt, iterations);
    snprintf(unproven, sizeof unproven, "c=biws,r=%s", nonce);
    int size = snprintf(exchange, sizeof exchange, "%s,%s,%s", s->bare, s->first, unproven);
    hmac(stored_key, exchange, (size_t)size, signature);
    for (int i = 0; i < KEY; i++) proof[i] = client_key[i] ^ signature[i];
    EVP_EncodeBlock(encoded, proof, KEY);
    hmac(server_key, exchange, (size_t)size, signature);
    strcpy(s->expected, "v=");
    EVP_EncodeBlock((unsigned char *)s->expected + 2, signature, KEY);
    size = snprintf(token, sizeof token, "%s,p=%s", unproven, (char *)encoded);
    say_token(s, token, (size_t)size, FINAL);
}

static void say_frame(struct slot *s) {
    unsigned char frame[ROOM];
    size_t size = options.size;
    put_int(frame, 0, 4, (int64_t)size);
    for (size_t i = 0; i < size; i++) frame[4 + i] = (unsigned char)(i * 7 + nonces);
    put_int(frame, 4, 4, FETCH); /* the header of a request whose correlation id repeats these four bytes: its echo is an answer to it */
    put_int(frame, 8, 4, FETCH);
    memcpy(s->bare, frame + 4, size < sizeof s->bare ? size : sizeof s->bare);
    say(s, frame, size + 4, EXCHANGING);
}

/* What an answer to SaslAuthenticate carries; NULL when the login is refused. */
static const char *token_of(struct slot *s, size_t size, size_t *length) {
    int64_t error = take_int(s->frame, 8, 2), words = take_int(s->frame, 10, 2);
    if (error == AUTHENTICATION_FAILED || error == UNKNOWN_SERVER_ERROR) return NULL;
    if (error != NONE) die("an answer to SaslAuthenticate with error %lld", (long long)error);
    size_t at = 12 + (words > 0 ? (size_t)words : 0);
    *length = (size_t)take_int(s->frame, at, 4);
    if (at + 4 + *length + 8 != size) die("an answer to SaslAuthenticate of another form");
    return (const char *)s->frame + at + 4;
}

static void on_token(struct slot *s, size_t size) {
    size_t length = 0;
    const char *token = token_of(s, size, &length);
    if (token == NULL) {
        came_out(s, REFUSED);
        s->state = ENDING;
        s->got = 0;
        return;
    }
    if (s->state == FIRST) {
        if (length >= sizeof s->first) die("a long server-first message");
        memcpy(s->first, token, length);
        s->first[length] = 0;
        say_final(s);
        return;
    }
    if (!options.plain && (length != strlen(s->expected) || memcmp(token, s->expected, length) != 0)) die("the server's signature is wrong");
    say_frame(s);
}

static void on_frame(struct slot *s, size_t size) {
    if (s->state == EXCHANGING) {
        size_t most = sizeof s->bare;
        if (size != options.size + 4 || memcmp(s->frame + 4, s->bare, size - 4 < most ? size - 4 : most) != 0) die("a frame came back changed");
        came_out(s, THROUGH);
        shutdown(s->fd, SHUT_WR);
        s->state = ENDING;
        s->got = 0;
        return;
    }
    if (take_int(s->frame, 4, 4) != (int64_t)s->state) die("an answer to another request");
    if (s->state == ASKING) {
        if (take_int(s->frame, 8, 2) != NONE) die("the mechanism is refused");
        say_first(s);
        return;
    }
    on_token(s, size);
}

/* One read: a server says nothing that it is not asked. */
static void on_readable(struct slot *s) {
    ssize_t count = recv(s->fd, s->frame + s->got, ROOM - s->got, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
        came_out(s, CLOSED);
        give_up_slot(s);
        return;
    }
    if (s->state == ENDING) die("data behind the end");
    s->got += (size_t)count;
    if (s->got < 4) return;
    size_t size = 4 + (size_t)take_int(s->frame, 0, 4);
    if (size > ROOM || s->got > size) die("an answer of %zu bytes, and %zu are here", size, s->got);
    if (s->got == size) on_frame(s, size);
}

static void on_connected(struct slot *s) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) {
        say_mechanism(s);
        return;
    }
    came_out(s, CLOSED);
    give_up_slot(s);
}

static void begin(int64_t due) {
    struct slot *s = unused[--free_count];
    s->due = due;
    s->is_out = 0;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (s->fd < 0) die("socket: %s", strerror(errno));
    set_no_delay(s->fd);
    if (connect(s->fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) die("connect: %s", strerror(errno));
    s->state = CONNECTING;
    s->events = EPOLLOUT;
    watch(epoll, EPOLL_CTL_ADD, s->fd, EPOLLOUT, s);
}

static void turn(int64_t until) {
    static struct epoll_event events[512];
    int64_t left = until - now_ns();
    if (left < 0) left = 0;
    struct timespec timeout = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    int count = epoll_pwait2(epoll, events, 512, &timeout, NULL);
    for (int i = 0; i < count; i++) {
        struct slot *s = events[i].data.ptr;
        if (s->state == CONNECTING) on_connected(s);
        else if (s->state != FREE) on_readable(s);
    }
}

static void tell(const char *event) {
    printf("{\"event\": \"%s\"}\n", event);
    fflush(stdout);
}

static int64_t due_next(void) { return start + (int64_t)((double)due_count * 1e9 / options.rate); }

static int64_t fall_due(void) {
    int64_t due = due_next();
    due_count++;
    measured_due += due >= measure_from;
    return due;
}

static void run(void) {
    int64_t sent = 0;
    start = now_ns();
    measure_from = start + (int64_t)(options.warm_up * 1e9);
    measure_until = measure_from + (int64_t)(options.seconds * 1e9);
    int measuring = 0;
    for (;;) {
        int64_t now = now_ns(), next;
        if (!measuring && now >= measure_from) {
            measuring = 1;
            tell("measuring");
        }
        while ((next = due_next()) <= now && next < measure_until && free_count > 0) {
            if (now - next > LATE_NS) late++;
            begin(fall_due());
            sent++;
        }
        if (now >= measure_until) break;
        int64_t wait = measuring ? measure_until : measure_from;
        if (free_count == 0) next = now + 1000000;
        turn(next < wait ? next : wait);
    }
    while (due_next() < measure_until) fall_due(); /* for want of a slot: they are missing */
    int64_t give_up = now_ns() + (int64_t)(options.patience * 1e9);
    while (free_count < SLOTS && now_ns() < give_up) turn(now_ns() + 100000000);
    sort_times();
    uint64_t out = counted[THROUGH] + counted[REFUSED] + counted[CLOSED];
    printf("{\"event\": \"measured\", \"due\": %llu, \"through\": %llu, \"refused\": %llu, \"closed\": %llu, \"missing\": %llu, \"late\": %llu, ",
           (unsigned long long)measured_due, (unsigned long long)counted[THROUGH], (unsigned long long)counted[REFUSED],
           (unsigned long long)counted[CLOSED], (unsigned long long)(measured_due - out), (unsigned long long)late);
    printf("\"seconds\": %.6f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f}\n", options.seconds, percentile_ns(0.5) / 1e6,
           percentile_ns(0.99) / 1e6, percentile_ns(1) / 1e6);
    printf("{\"event\": \"done\", \"begun\": %lld, \"through\": %llu, \"refused\": %llu, \"closed\": %llu}\n", (long long)sent,
           (unsigned long long)outcomes[THROUGH], (unsigned long long)outcomes[REFUSED], (unsigned long long)outcomes[CLOSED]);
    fflush(stdout);
}

static void parse_options(int argc, char **argv) {
    options = (struct options){.rate = 100, .warm_up = 0.5, .seconds = 2, .patience = 10, .size = 100};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[++i] : "";
        if (!strcmp(name, "--connect")) options.connect = value;
        else if (!strcmp(name, "--user")) options.user = value;
        else if (!strcmp(name, "--password")) options.password = value;
        else if (!strcmp(name, "--mechanism")) options.plain = !strcmp(value, "PLAIN");
        else if (!strcmp(name, "--rate")) options.rate = atof(value);
        else if (!strcmp(name, "--warm-up")) options.warm_up = atof(value);
        else if (!strcmp(name, "--seconds")) options.seconds = atof(value);
        else if (!strcmp(name, "--patience")) options.patience = atof(value);
        else if (!strcmp(name, "--size")) options.size = (size_t)atol(value);
        else die("unknown option %s", name);
    }
    if (options.connect == NULL || options.user == NULL || options.password == NULL) die("logins --connect HOST:PORT --user NAME --password WORD …");
    if (strlen(options.user) > 64 || strlen(options.password) > 128) die("a name of at most 64 bytes, a password of at most 128");
    if (options.rate <= 0 || options.size < 8 || options.size > 256) die("--rate is above 0, --size 8 to 256");
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    prepare_process();
    prctl(PR_SET_TIMERSLACK, 1000ul);
    epoll = epoll_create1(0);
    address = parse_address(options.connect);
    all = allocate(SLOTS * sizeof *all);
    unused = allocate(SLOTS * sizeof *unused);
    for (int i = 0; i < SLOTS; i++) unused[free_count++] = &all[i];
    run();
    return 0;
}
