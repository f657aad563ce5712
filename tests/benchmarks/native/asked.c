/* The upstream of the large parts: it reads one whole frame, then answers it, and reads nothing meanwhile. What it answers is in the request (pattern.h);
 * any other frame is echoed.
 *
 *     asked --listen HOST:PORT [--segment BYTES]
 */
#include "pattern.h"

#include <sys/uio.h>

struct connection {
    int fd;
    uint32_t events;
    unsigned char header[4];
    size_t got;             /* of the frame, its header included */
    unsigned char *frame;   /* body; grows as it comes, never to what was only announced */
    size_t room, size;      /* size: of the body */
    size_t answer, written; /* of the answer's frame, its header included; 0: still reading */
    int echoes;
    uint64_t number;
};

static int epoll;

static void set_events(struct connection *c, uint32_t events) {
    if (c->events != events) {
        c->events = events;
        watch(epoll, EPOLL_CTL_MOD, c->fd, events, c);
    }
}

static void close_connection(struct connection *c) {
    close(c->fd);
    free(c->frame);
    free(c);
}

static void make_room(struct connection *c, size_t wanted) {
    if (wanted <= c->room) return;
    size_t room = c->room * 2 > wanted ? c->room * 2 : wanted;
    c->room = room < 4096 ? 4096 : room;
    c->frame = realloc(c->frame, c->room);
    if (c->frame == NULL) die("out of memory: %zu bytes", c->room);
}

static void begin_answer(struct connection *c) {
    c->echoes = c->size < BODY_HEAD || word_of(c->frame, 0) != MAGIC || word_of(c->frame, 1) == 0;
    c->number = c->echoes ? 0 : word_of(c->frame, 2);
    c->answer = 4 + (c->echoes ? c->size : (size_t)word_of(c->frame, 1));
    c->written = 0;
}

/* What is next of the answer, in two parts at most; the first byte carries the time at which it goes. */
static ssize_t send_next(struct connection *c, unsigned char *head) {
    struct iovec parts[2] = {{0}};
    int count = 0;
    if (c->echoes) {
        if (c->written < 4) parts[count++] = (struct iovec){c->header + c->written, 4 - c->written};
        size_t from = c->written < 4 ? 0 : c->written - 4, left = c->size - from;
        if (left > 0) parts[count++] = (struct iovec){c->frame + from, left < CHUNK ? left : CHUNK};
    } else {
        if (c->written == 0) make_head(head, c->answer - 4, (uint64_t)now_ns(), c->answer - 4, c->number);
        if (c->written < HEAD) parts[count++] = (struct iovec){head + c->written, HEAD - c->written};
        size_t from = c->written < HEAD ? HEAD : c->written, left = c->answer - from;
        if (left > 0) parts[count++] = (struct iovec){(void *)(uintptr_t)pattern_at(c->number, from - 4), left < CHUNK ? left : CHUNK};
    }
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    return sendmsg(c->fd, &message, MSG_NOSIGNAL);
}

/* 0: the connection is over. A head that went out in part is remembered in the frame's buffer, which nobody needs any more. */
static int answer_some(struct connection *c) {
    make_room(c, HEAD);
    ssize_t count = send_next(c, c->frame);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return 0;
    if (count > 0) c->written += (size_t)count;
    if (c->written < c->answer) {
        set_events(c, EPOLLOUT);
        return 1;
    }
    c->answer = c->got = 0;
    set_events(c, EPOLLIN);
    return 1;
}

static int read_some(struct connection *c) {
    ssize_t count;
    if (c->got < 4) {
        count = recv(c->fd, c->header + c->got, 4 - c->got, 0);
    } else {
        size_t have = c->got - 4, wanted = c->size - have;
        if (wanted > CHUNK) wanted = CHUNK;
        make_room(c, have + wanted);
        count = recv(c->fd, c->frame + have, wanted, 0);
    }
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return 0;
    c->got += (size_t)count;
    if (c->got == 4) c->size = size_of(c->header);
    if (c->got < 4 || c->got < 4 + c->size) return 1;
    begin_answer(c);
    return answer_some(c);
}

int main(int argc, char **argv) {
    const char *where = NULL;
    int segment = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--listen")) where = argv[i + 1];
        else if (!strcmp(argv[i], "--segment")) segment = atoi(argv[i + 1]);
        else die("unknown option %s", argv[i]);
    }
    if (where == NULL) die("asked --listen HOST:PORT [--segment BYTES]");
    prepare_process();
    make_pattern();
    epoll = epoll_create1(0);
    int listener = listen_and_tell(where);
    set_segment(listener, segment);
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    struct epoll_event events[512];
    for (;;) {
        int count = epoll_wait(epoll, events, 512, -1);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (c != NULL) {
                if (!(c->answer > 0 ? answer_some(c) : read_some(c))) close_connection(c);
                continue;
            }
            for (int n = 0; n < 64; n++) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (fd < 0) break;
                set_no_delay(fd);
                c = allocate(sizeof *c);
                c->fd = fd;
                c->events = EPOLLIN;
                watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, c);
            }
        }
    }
}
