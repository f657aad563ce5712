/* The reference: what a plain relay costs that knows nothing of frames. Level-triggered epoll, one read and one write for each readable event, a
 * write is tried at once, what the socket refuses is kept and its source is not read until that has drained: the work of framegate's loop, without
 * framing, limits, pool, counters or tap.
 *
 *     relay --listen 127.0.0.1:0 --connect 127.0.0.1:9000 [--read-size 131072]
 */
#include "sockets.h"

struct side {
    int fd;
    struct side *peer;
    char *pending; /* what the socket refused */
    size_t pending_size, pending_start;
    uint32_t events;
    int connecting, finished; /* finished: our reads met the end of the stream */
};

static int epoll;
static size_t read_size = 128 * 1024;
static char *buffer;
static struct side *dead[4096];
static int dead_count;

static void set_events(struct side *side, uint32_t events) {
    if (side->events != events) {
        side->events = events;
        watch(epoll, EPOLL_CTL_MOD, side->fd, events, side);
    }
}

static void close_pair(struct side *side) {
    struct side *both[2] = {side, side->peer};
    for (int i = 0; i < 2; i++) {
        if (both[i]->fd < 0) continue;
        close(both[i]->fd);
        both[i]->fd = -1;
        dead[dead_count++] = both[i];
    }
}

/* Read interest while the peer can take more, write interest while something waits. */
static void settle(struct side *side) {
    int may_read = !side->finished && side->peer->pending == NULL && !side->peer->connecting;
    set_events(side, (may_read ? EPOLLIN : 0) | (side->pending != NULL || side->connecting ? EPOLLOUT : 0));
}

/* 0: all written, 1: some waits, -1: the pair is closed. */
static int write_some(struct side *side, const char *data, size_t size) {
    ssize_t count = send(side->fd, data, size, MSG_NOSIGNAL);
    if (count < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            close_pair(side);
            return -1;
        }
        count = 0;
    }
    if ((size_t)count == size) return 0;
    side->pending_size = size - (size_t)count;
    side->pending_start = 0;
    side->pending = allocate(side->pending_size);
    memcpy(side->pending, data + count, side->pending_size);
    return 1;
}

static void flush(struct side *side) {
    ssize_t count = send(side->fd, side->pending + side->pending_start, side->pending_size - side->pending_start, MSG_NOSIGNAL);
    if (count < 0) {
        if (errno != EAGAIN && errno != EINTR) close_pair(side);
        return;
    }
    side->pending_start += (size_t)count;
    if (side->pending_start < side->pending_size) return;
    free(side->pending);
    side->pending = NULL;
    if (side->peer->finished) shutdown(side->fd, SHUT_WR);
    settle(side);
    settle(side->peer);
}

static void read_once(struct side *side) {
    ssize_t count = recv(side->fd, buffer, read_size, 0);
    if (count < 0) {
        if (errno != EAGAIN && errno != EINTR) close_pair(side);
        return;
    }
    if (count == 0) {
        side->finished = 1;
        if (side->peer->finished) {
            close_pair(side);
            return;
        }
        shutdown(side->peer->fd, SHUT_WR);
        settle(side);
        return;
    }
    if (write_some(side->peer, buffer, (size_t)count) > 0) {
        settle(side);
        settle(side->peer);
    }
}

static void accept_some(int listener, const struct sockaddr_in *upstream) {
    for (int i = 0; i < 20; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        int up = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct side *a = allocate(sizeof *a), *b = allocate(sizeof *b);
        *a = (struct side){.fd = fd, .peer = b};
        *b = (struct side){.fd = up, .peer = a, .connecting = 1, .events = EPOLLOUT};
        set_no_delay(fd);
        set_no_delay(up);
        if (connect(up, (const struct sockaddr *)upstream, sizeof *upstream) < 0 && errno != EINPROGRESS) die("connect: %s", strerror(errno));
        watch(epoll, EPOLL_CTL_ADD, fd, 0, a);
        watch(epoll, EPOLL_CTL_ADD, up, EPOLLOUT, b);
    }
}

int main(int argc, char **argv) {
    const char *where = NULL, *to = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--listen")) where = argv[i + 1];
        else if (!strcmp(argv[i], "--connect")) to = argv[i + 1];
        else if (!strcmp(argv[i], "--read-size")) read_size = (size_t)atol(argv[i + 1]);
        else die("unknown option %s", argv[i]);
    }
    if (where == NULL || to == NULL) die("relay --listen HOST:PORT --connect HOST:PORT [--read-size BYTES]");
    prepare_process();
    struct sockaddr_in upstream = parse_address(to);
    buffer = allocate(read_size);
    epoll = epoll_create1(0);
    int listener = listen_and_tell(where);
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    struct epoll_event events[512];
    for (;;) {
        int count = epoll_wait(epoll, events, 512, -1);
        for (int i = 0; i < count; i++) {
            struct side *side = events[i].data.ptr;
            if (side == NULL) {
                accept_some(listener, &upstream);
                continue;
            }
            if (side->fd < 0) continue;
            if (events[i].events & EPOLLOUT) {
                if (side->connecting) {
                    int error = 0;
                    socklen_t length = sizeof error;
                    getsockopt(side->fd, SOL_SOCKET, SO_ERROR, &error, &length);
                    if (error != 0) {
                        close_pair(side);
                        continue;
                    }
                    side->connecting = 0;
                    settle(side);
                    settle(side->peer);
                } else if (side->pending != NULL) {
                    flush(side);
                }
            }
            if (side->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                if (side->events & EPOLLIN) read_once(side);
                else if (events[i].events & (EPOLLHUP | EPOLLERR)) close_pair(side);
            }
            if (dead_count > 4000) break;
        }
        while (dead_count > 0) {
            free(dead[--dead_count]->pending);
            free(dead[dead_count]);
        }
    }
}
