/* Small helpers that the load generator, the echo server and the reference relay share. Linux only. */
#ifndef FRAMEGATE_BENCH_SOCKETS_H
#define FRAMEGATE_BENCH_SOCKETS_H

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void *allocate(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (memory == NULL) die("out of memory: %zu bytes", size);
    return memory;
}

/* Bytes that look like chance, the same ones each time. */
static inline void fill_pattern(char *to, size_t size) {
    uint32_t state = 2463534242u;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        to[i] = (char)state;
    }
}

static inline void set_non_blocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) die("fcntl: %s", strerror(errno));
}

static inline void set_no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* "127.0.0.1:9000" */
static inline struct sockaddr_in parse_address(const char *text) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    char host[256];
    const char *colon = strrchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof host) die("not host:port: %s", text);
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    address.sin_port = htons((uint16_t)atoi(colon + 1));
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) die("cannot resolve %s", host);
    address.sin_addr = ((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr;
    freeaddrinfo(found);
    return address;
}

/* A listening socket; prints {"port": N} for whoever started us. */
static inline int listen_and_tell(const char *text) {
    struct sockaddr_in address = parse_address(text);
    socklen_t length = sizeof address;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) die("socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) die("bind %s: %s", text, strerror(errno));
    if (listen(fd, 4096) < 0) die("listen: %s", strerror(errno));
    set_non_blocking(fd);
    getsockname(fd, (struct sockaddr *)&address, &length);
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static inline void watch(int epoll, int operation, int fd, uint32_t events, void *data) {
    struct epoll_event event = {.events = events, .data = {.ptr = data}};
    if (epoll_ctl(epoll, operation, fd, &event) < 0) die("epoll_ctl: %s", strerror(errno));
}

/* As many descriptors as we may have, and no death by SIGPIPE. */
static inline void prepare_process(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    signal(SIGPIPE, SIG_IGN);
}

#endif
