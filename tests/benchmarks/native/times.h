/* Every time that was measured, in nanoseconds, for programs that measure few. */
#ifndef FRAMEGATE_BENCH_TIMES_H
#define FRAMEGATE_BENCH_TIMES_H

#include "sockets.h"

static int64_t *times;
static size_t times_count, times_room;

static inline void record(int64_t ns) {
    if (times_count == times_room) {
        times_room = times_room ? 2 * times_room : 4096;
        times = realloc(times, times_room * sizeof *times);
        if (times == NULL) die("out of memory");
    }
    times[times_count++] = ns;
}

static inline int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static inline void sort_times(void) { qsort(times, times_count, sizeof *times, compare_times); }

/* Of sorted times; 0: there are none. */
static inline double percentile_ns(double share) {
    if (times_count == 0) return 0;
    size_t at = (size_t)((double)times_count * share);
    return (double)times[at < times_count ? at : times_count - 1];
}

#endif
