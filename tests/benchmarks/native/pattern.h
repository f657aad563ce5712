/* What frames of the large parts hold, and what asks for them.
 *
 * A request's body begins with 24 bytes, big-endian: MAGIC, the size of the answer's body that it asks for (0: the request itself, echoed), its number
 * (connection << 32 | sequence). An answer of a size of its own begins with the time at which its first byte was handed to the socket
 * (CLOCK_MONOTONIC, ns), its size, and the number of what asked. From the 25th byte on every body is a pattern that depends on number and position.
 */
#ifndef FRAMEGATE_BENCH_PATTERN_H
#define FRAMEGATE_BENCH_PATTERN_H

#include "sockets.h"

#define MAGIC 0x6672616d65676174ull
#define HEAD 28 /* the frame's size, and the 24 bytes */
#define BODY_HEAD 24
#define CHUNK (256 * 1024)
#define PATTERN (1024 * 1024)

static char pattern[PATTERN + CHUNK];

static inline void make_pattern(void) {
    fill_pattern(pattern, PATTERN);
    memcpy(pattern + PATTERN, pattern, CHUNK);
}

/* At most CHUNK bytes of a body from `position` (of the body, from BODY_HEAD on). */
static inline const char *pattern_at(uint64_t number, size_t position) { return pattern + (number * 131 + (number >> 32) * 8191 + position) % PATTERN; }

static inline void make_head(unsigned char *to, size_t size, uint64_t first, uint64_t answer, uint64_t number) {
    uint32_t header = htonl((uint32_t)size);
    uint64_t words[3] = {htobe64(first), htobe64(answer), htobe64(number)};
    memcpy(to, &header, 4);
    memcpy(to + 4, words, sizeof words);
}

static inline uint64_t word_of(const unsigned char *from, int index) {
    uint64_t word;
    memcpy(&word, from + 8 * index, 8);
    return be64toh(word);
}

static inline uint32_t size_of(const unsigned char *header) {
    uint32_t size;
    memcpy(&size, header, 4);
    return ntohl(size);
}

/* So that segments, and with them the kernel's buffers, are as large as on a network; loopback's are 64 KiB. */
static inline void set_segment(int fd, int size) {
    if (size > 0 && setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &size, sizeof size) < 0) die("TCP_MAXSEG: %s", strerror(errno));
}

#endif
