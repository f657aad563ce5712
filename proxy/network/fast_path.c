/* The fast path of a selector, in C: waits for events, and moves whole int32 frames between sockets, if nothing but a tap inspects them.
 *
 * Each channel of this kind has a lane. While a lane is open, an event is one recv, a scan of the frame headers, and one send of the whole frames to
 * the descriptor of its peer's lane; over TLS with OpenSSL in between (``tls_connection.h``). Everything else goes to Python: other events; the rest of
 * a send that the socket did not take; errors, and whatever TLS does beside. A lane for which Python does anything is closed, with its peer's; Python
 * opens it again (``RelayLeg.received``).
 *
 * The beginning of a frame, behind the last whole one, stays with the lane until the next read, or until Python takes it (``close``, ``take_begun``).
 * Its bytes are counted when they come, as Python counts them, because a count that grew with what Python takes, and shrank with what it gives back,
 * would be published.
 * No memory pool books these bytes, so all lanes together hold at most MOST_BEGUN, and the rest goes to Python at once; so does a frame that is
 * cut through, or longer than READ_SIZE, and one that comes in pieces so small that copying them again and again would cost more than the reads.
 *
 * A lane may have a function (``before_send``) that gets a copy of the whole frames of each read before they are sent, and changes no lane.
 *
 * Traffic is counted here until Python takes the counts (``take_channels``, ``take_sides``), which it does before anything looks at them.
 *
 * A lane that hands many reads to Python costs more than Python's own reads. It then opens only after more runs, up to MOST_SKIPPED.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

enum {
    READ_SIZE = 256 * 1024,  /* of one recv, as MAX_READ */
    EVENTS = 256,            /* of one wait, as MAX_EVENTS */
    BUCKETS = 12,            /* of frame sizes, as SIZE_BUCKETS */
    CLOCK_EACH = 4,          /* lanes between two readings of the clock */
    MOST_SKIPPED = 255,
    STEADY = 64,             /* reads in a row without a hand-over, after which none is skipped any more */
    MOST_BEGUN = 1024 * 1024,  /* bytes of begun frames */
    COPIED_AGAIN = 4096,     /* so many bytes of a begun frame may be copied with each read; more if the read had a quarter of them */
};

#include "tls_connection.h"

/* A side: clients, or upstreams, of one listener. */
typedef struct {
    PyObject_HEAD
    PyObject *stats;         /* the SideStats */
    long long reads, bytes_received, frames_received, writes, bytes_sent, frames_sent;
    long long sizes[BUCKETS];
    long long runs;          /* sent in this run of the fast path */
    bool timed, touched;     /* it is in the list of that name */
} Side;

typedef struct Lane {
    PyObject_HEAD
    int fd, longest;         /* ``longest``: the longest frame whose beginning is kept */
    bool is_open, touched, listed;
    unsigned char skipped, skips, steady;
    unsigned generation;
    long long limit;         /* the largest body; -1: unlimited */
    PyObject *before_send;   /* is called with the whole frames of each read, as bytes, and their number, before they are sent; NULL: none */
    struct Lane *peer;       /* of the other channel of the pair, whose peer this one is; not a reference; NULL before the first opening */
    Side *side;
    TlsConnection *tls;         /* NULL: plaintext */
    unsigned char *begun;    /* of a frame that is not whole; NULL: none */
    size_t begun_length;
    long long bytes_received, frames_received, bytes_sent, frames_sent, wire_received, wire_sent, last_ns;
} Lane;

typedef struct {
    PyObject_HEAD
    int epoll, lanes_size;
    int next, count;         /* the events that are not handled yet */
    unsigned generation;
    Lane **lanes;            /* by descriptor; references */
    PyObject *channels;      /* lanes with counts that were not taken */
    PyObject *sides;         /* likewise */
    PyObject *beginnings;    /* lanes that have, or had, the beginning of a frame */
    struct epoll_event events[EVENTS];
    unsigned char *buffer;   /* a begun frame and a read, 2 * READ_SIZE; not a part of the object, which Python fills with zeros */
} FastPath;

static size_t all_begun;     /* bytes, of all lanes */

static PyTypeObject SideType, LaneType;

/* --- side ----------------------------------------------------------------------------------------------------------------------- */

static int side_init(Side *self, PyObject *args, PyObject *kwargs) {
    PyObject *stats;
    if (!PyArg_ParseTuple(args, "O", &stats)) return -1;
    Py_XSETREF(self->stats, Py_NewRef(stats));
    return 0;
}

static int side_traverse(Side *self, visitproc visit, void *arg) {
    Py_VISIT(self->stats);
    return 0;
}

static int side_clear(Side *self) {
    Py_CLEAR(self->stats);
    return 0;
}

static void side_dealloc(Side *self) {
    PyObject_GC_UnTrack(self);
    side_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject SideType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framegate.proxy.network.fast_path.Side",
    .tp_basicsize = sizeof(Side),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)side_init,
    .tp_traverse = (traverseproc)side_traverse,
    .tp_clear = (inquiry)side_clear,
    .tp_dealloc = (destructor)side_dealloc,
};

/* --- lane ----------------------------------------------------------------------------------------------------------------------- */

static int lane_init(Lane *self, PyObject *args, PyObject *kwargs) {
    PyObject *side, *tls;
    if (!PyArg_ParseTuple(args, "iO!Oi", &self->fd, &SideType, &side, &tls, &self->longest)) return -1;
    if (tls != Py_None && !PyObject_TypeCheck(tls, &TlsConnectionType)) {
        PyErr_SetString(PyExc_TypeError, "a TlsConnection or None is needed");
        return -1;
    }
    if (self->longest > READ_SIZE) {
        PyErr_SetString(PyExc_ValueError, "the beginning of a frame is longer than the buffer");
        return -1;
    }
    Py_XSETREF(self->side, (Side *)Py_NewRef(side));
    Py_XSETREF(self->tls, tls == Py_None ? NULL : (TlsConnection *)Py_NewRef(tls));
    return 0;
}

/* A lane and that of its peer: what happens to one channel of a pair may change the other. */
static void close_lane(Lane *lane) {
    Lane *peer = lane->peer;
    lane->is_open = false;
    if (peer) {
        peer->is_open = false;
        Py_CLEAR(peer->before_send);
    }
    Py_CLEAR(lane->before_send);
}

static void part(Lane *lane) {
    close_lane(lane);
    if (lane->peer) lane->peer->peer = NULL;
    lane->peer = NULL;
}

static void drop_begun(Lane *lane) {
    all_begun -= lane->begun_length;
    free(lane->begun);
    lane->begun = NULL;
    lane->begun_length = 0;
}

/* The begun frame as bytes, or None. */
static PyObject *take_begun(Lane *lane) {
    if (!lane->begun) Py_RETURN_NONE;
    PyObject *begun = PyBytes_FromStringAndSize((char *)lane->begun, lane->begun_length);
    if (begun) drop_begun(lane);
    return begun;
}

static void lane_dealloc(Lane *self) {
    part(self);
    drop_begun(self);
    Py_XDECREF(self->side);
    Py_XDECREF(self->tls);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *lane_close(Lane *self, PyObject *unused) {
    close_lane(self);
    return take_begun(self);
}

static PyMethodDef lane_methods[] = {
    {"close", (PyCFunction)lane_close, METH_NOARGS, "Close it, and the lane of its peer. Returns the bytes of its begun frame, or None."},
    {NULL},
};

static PyTypeObject LaneType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framegate.proxy.network.fast_path.Lane",
    .tp_basicsize = sizeof(Lane),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)lane_init,
    .tp_dealloc = (destructor)lane_dealloc,
    .tp_methods = lane_methods,
};

/* --- fast path ------------------------------------------------------------------------------------------------------------------ */

static long long clock_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int path_init(FastPath *self, PyObject *args, PyObject *kwargs) {
    if (!PyArg_ParseTuple(args, "i", &self->epoll)) return -1;
    if (!self->buffer && !(self->buffer = PyMem_Malloc(2 * READ_SIZE))) {
        PyErr_NoMemory();
        return -1;
    }
    Py_XSETREF(self->channels, PyList_New(0));
    Py_XSETREF(self->sides, PyList_New(0));
    Py_XSETREF(self->beginnings, PyList_New(0));
    return self->channels && self->sides && self->beginnings ? 0 : -1;
}

static void path_dealloc(FastPath *self) {
    for (int fd = 0; fd < self->lanes_size; fd++) Py_XDECREF(self->lanes[fd]);
    PyMem_Free(self->lanes);
    PyMem_Free(self->buffer);
    Py_XDECREF(self->channels);
    Py_XDECREF(self->sides);
    Py_XDECREF(self->beginnings);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *path_add(FastPath *self, PyObject *object) {
    if (!PyObject_TypeCheck(object, &LaneType)) return PyErr_Format(PyExc_TypeError, "a Lane is needed");
    Lane *lane = (Lane *)object;
    if (lane->fd < 0) return PyErr_Format(PyExc_ValueError, "the descriptor %d", lane->fd);
    if (lane->fd >= self->lanes_size) {
        int size = lane->fd + lane->fd / 2 + 64;
        Lane **lanes = PyMem_Realloc(self->lanes, size * sizeof *lanes);
        if (!lanes) return PyErr_NoMemory();
        memset(lanes + self->lanes_size, 0, (size - self->lanes_size) * sizeof *lanes);
        self->lanes = lanes;
        self->lanes_size = size;
    }
    Py_XSETREF(self->lanes[lane->fd], (Lane *)Py_NewRef(object));
    Py_RETURN_NONE;
}

static PyObject *path_remove(FastPath *self, PyObject *object) {
    if (!PyObject_TypeCheck(object, &LaneType)) return PyErr_Format(PyExc_TypeError, "a Lane is needed");
    Lane *lane = (Lane *)object;
    part(lane);
    if (lane->fd < self->lanes_size && self->lanes[lane->fd] == lane) Py_CLEAR(self->lanes[lane->fd]);
    Py_RETURN_NONE;
}

static PyObject *path_open(FastPath *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || !PyObject_TypeCheck(args[0], &LaneType) || !PyObject_TypeCheck(args[1], &LaneType))
        return PyErr_Format(PyExc_TypeError, "two lanes, a limit, and a callable or None are needed");
    Lane *lane = (Lane *)args[0], *peer = (Lane *)args[1];
    if (lane == peer) return PyErr_Format(PyExc_ValueError, "a lane to itself");
    long long limit = PyLong_AsLongLong(args[2]);
    if (limit == -1 && PyErr_Occurred()) return NULL;
    if (lane->skips) {
        lane->skips--;
        Py_RETURN_FALSE;
    }
    if (lane->peer != peer) {
        part(lane);
        part(peer);
        lane->peer = peer;
        peer->peer = lane;
    }
    lane->limit = limit;
    Py_XSETREF(lane->before_send, args[3] == Py_None ? NULL : Py_NewRef(args[3]));
    lane->generation = self->generation;
    lane->is_open = true;
    Py_RETURN_TRUE;
}

static int touch(PyObject *list, PyObject *object, bool *touched) {
    if (*touched) return 0;
    *touched = true;
    return PyList_Append(list, object);
}

/* Whether the bytes behind the last whole frame, after a read of ``received`` bytes, may stay with the lane. */
static bool may_keep(const Lane *lane, const unsigned char *data, size_t length, size_t received) {
    if (length > COPIED_AGAIN && length / 4 > received) return false;
    if (length < 4) return true;
    uint32_t word;
    memcpy(&word, data, 4);
    int32_t size = (int32_t)__builtin_bswap32(word);
    return size >= 0 && size <= lane->longest - 4 && (lane->limit < 0 || size <= lane->limit);
}

/* Keep the beginning of a frame. Returns 1: it is kept, 0: there is no room, -1: an exception. */
static int keep_begun(FastPath *self, Lane *lane, const unsigned char *data, size_t length) {
    if (all_begun - lane->begun_length + length > MOST_BEGUN) return 0;
    unsigned char *begun = realloc(lane->begun, length);
    if (!begun) return 0;
    memcpy(begun, data, length);
    all_begun += length - lane->begun_length;
    lane->begun = begun;
    lane->begun_length = length;
    return touch(self->beginnings, (PyObject *)lane, &lane->listed) < 0 ? -1 : 1;
}

static PyObject *path_keep(FastPath *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !PyObject_TypeCheck(args[0], &LaneType) || !PyBytes_CheckExact(args[1]))
        return PyErr_Format(PyExc_TypeError, "a lane and bytes are needed");
    Lane *lane = (Lane *)args[0];
    unsigned char *begun = (unsigned char *)PyBytes_AS_STRING(args[1]);
    size_t length = PyBytes_GET_SIZE(args[1]);
    if (lane->begun || length == 0 || length > READ_SIZE) return PyErr_Format(PyExc_ValueError, "%zu bytes of a begun frame", length);
    int kept = may_keep(lane, begun, length, length) ? keep_begun(self, lane, begun, length) : 0;
    return kept < 0 ? NULL : PyBool_FromLong(kept);
}

static bool serves(const FastPath *self, const Lane *lane) { return lane->is_open && lane->generation == self->generation; }

static PyObject *path_served(FastPath *self, PyObject *object) {
    if (!PyObject_TypeCheck(object, &LaneType)) return PyErr_Format(PyExc_TypeError, "a Lane is needed");
    Lane *lane = (Lane *)object;
    if (!serves(self, lane)) Py_RETURN_NONE;
    return Py_BuildValue("(iL)", lane->peer->fd, lane->limit);
}

static PyObject *path_close_all(FastPath *self, PyObject *unused) {
    self->generation++;
    Py_RETURN_NONE;
}

static PyObject *path_wait(FastPath *self, PyObject *timeout) {
    long ms = PyLong_AsLong(timeout);
    int count;
    if (ms == -1 && PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    count = epoll_wait(self->epoll, self->events, EVENTS, (int)ms);
    Py_END_ALLOW_THREADS
    self->next = 0;
    self->count = count < 0 ? 0 : count;
    if (count < 0 && errno != EINTR) return PyErr_SetFromErrno(PyExc_OSError);
    if (count < 0 && PyErr_CheckSignals() < 0) return NULL;
    Py_RETURN_NONE;
}

/* The whole frames at the begin of the buffer; ``end``: where they end. A frame above the limit, or of a negative size, is none. */
static long scan(const unsigned char *data, ssize_t length, long long limit, long long *sizes, ssize_t *end) {
    ssize_t position = 0;
    long frames = 0;
    while (length - position >= 4) {
        uint32_t word;
        memcpy(&word, data + position, 4);
        int32_t size = (int32_t)__builtin_bswap32(word);
        if (size < 0 || (limit >= 0 && size > limit) || size > length - position - 4) break;
        int bucket = 0;
        for (long long bound = 256; size > bound && bucket < BUCKETS - 1; bound <<= 2) bucket++;
        sizes[bucket]++;
        position += 4 + size;
        frames++;
    }
    *end = position;
    return frames;
}

static int hand(PyObject **handed, int fd, const unsigned char *data, ssize_t length, ssize_t taken, long frames, int code, PyObject *rest) {
    if (!*handed && !(*handed = PyList_New(0))) return -1;
    PyObject *item = Py_BuildValue("(iy#nliO)", fd, data, length, taken, frames, code, rest);
    int failed = item ? PyList_Append(*handed, item) : -1;
    Py_XDECREF(item);
    return failed;
}

/* Call a lane's ``before_send``. Returns 1: the frames may be sent, 0: not, -1: an exception, of memory for the copy, say. */
static int call_before_send(Lane *lane, const unsigned char *data, ssize_t length, long frames) {
    PyObject *function = Py_NewRef(lane->before_send), *args[] = {PyBytes_FromStringAndSize((char *)data, length), PyLong_FromLong(frames)}, *answer = NULL;
    if (args[0] && args[1]) answer = PyObject_Vectorcall(function, args, 2, NULL);
    int sends = answer ? answer == Py_True : -1;
    Py_DECREF(function);
    Py_XDECREF(args[0]);
    Py_XDECREF(args[1]);
    Py_XDECREF(answer);
    return sends;
}

/* One event of an open lane. Returns 0, 1: something was handed over, -1: an exception, 2: Python must handle the event. */
static int step(FastPath *self, Lane *lane, long long now_ns, PyObject **handed, PyObject **timed) {
    Lane *peer = lane->peer;
    TlsConnection *tls = lane->tls;
    unsigned char *read = self->buffer + lane->begun_length;
    ssize_t received, length, end = 0, taken = 0;
    int code = 0;
    PyObject *rest = NULL;       /* ciphertext that the socket of the peer did not take */
    if (tls) received = tls_fill(tls, tls->portion);
    else received = recv(lane->fd, read, READ_SIZE, 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (received < 0) {  /* a socket reports an error only once */
        code = errno;
        close_lane(lane);
        return hand(handed, lane->fd, self->buffer, 0, -1, 0, code, Py_None) < 0 ? -1 : 1;
    }
    if (received == 0) return 2;
    size_t whole = input_length;
    length = tls ? (ssize_t)tls_decrypt(tls, read, READ_SIZE) : received;
    if (tls) tls_adapt(tls, received, whole, length);
    if (tls && tls_keep(tls) < 0) return -1;
    bool unusual = tls && tls->flags;
    lane->wire_received += received;
    if (touch(self->channels, (PyObject *)lane, &lane->touched) < 0) return -1;
    if (length == 0) return unusual ? 2 : 0;
    lane->last_ns = now_ns;
    size_t came = length;
    if (lane->begun) memcpy(self->buffer, lane->begun, lane->begun_length);
    length += lane->begun_length;
    long frames = scan(self->buffer, length, lane->limit, lane->side->sizes, &end);
    if (frames) {
        Side *in = lane->side, *out = peer->side;
        ssize_t sent;
        int sends = lane->before_send ? call_before_send(lane, self->buffer, end, frames) : 1;
        if (sends < 0) return -1;
        if (!sends) {
            sent = taken = 0;
        } else if (!peer->tls) {
            sent = taken = send(peer->fd, self->buffer, end, MSG_NOSIGNAL);
            if (sent < 0) {
                code = errno == EAGAIN || errno == EINTR ? 0 : errno;
                sent = taken = 0;
            }
        } else if (tls_begin(), tls_encrypt(peer->tls, self->buffer, end)) {
            sent = tls_send(peer->tls, &code);
            taken = code ? 0 : end;
            if (!(rest = tls_rest(sent))) return -1;
        } else {
            code = EPROTO;
            sent = output_length = 0;
        }
        lane->frames_received += frames, in->frames_received += frames;
        if (sent) peer->wire_sent += sent, peer->last_ns = now_ns, out->writes++;
        if (taken) {
            peer->bytes_sent += taken, out->bytes_sent += taken;
            if (touch(self->channels, (PyObject *)peer, &peer->touched) < 0 || touch(self->sides, (PyObject *)out, &out->touched) < 0) goto failed;
        }
        if (taken == end && (!rest || rest == Py_None)) {
            peer->frames_sent += frames, out->frames_sent += frames, out->runs++;
            if (!*timed && !(*timed = PyList_New(0))) goto failed;
            if (touch(*timed, (PyObject *)out, &out->timed) < 0) goto failed;
        }
    }
    bool unsent = frames && (taken < end || (rest && rest != Py_None));
    int kept = 0;
    if (!unsent && !unusual && end < length && may_keep(lane, self->buffer + end, length - end, came))
        kept = keep_begun(self, lane, self->buffer + end, length - end);
    if (kept < 0) goto failed;
    if (!kept && lane->begun) drop_begun(lane);
    ssize_t counted = came;
    if (end == length || kept) lane->side->reads++;
    else counted -= length - end;  /* Python counts the read, and these bytes, of which it may have counted the begun frame already */
    lane->bytes_received += counted, lane->side->bytes_received += counted;
    if (touch(self->sides, (PyObject *)lane->side, &lane->side->touched) < 0) goto failed;
    if (!unsent && (end == length || kept) && !unusual) {
        Py_XDECREF(rest);
        if (lane->steady < STEADY && ++lane->steady == STEADY) lane->skipped = 0;
        return 0;
    }
    close_lane(lane);
    lane->steady = 0;
    lane->skipped = lane->skips = lane->skipped * 2 + 1 < MOST_SKIPPED ? lane->skipped * 2 + 1 : MOST_SKIPPED;
    if (unsent && hand(handed, lane->fd, self->buffer, end, taken, frames, code, rest ? rest : Py_None) < 0) goto failed;
    if (end < length && hand(handed, lane->fd, self->buffer + end, length - end, -1, 0, 0, Py_None) < 0) goto failed;
    Py_XDECREF(rest);
    return unusual ? 2 : 1;
failed:
    Py_XDECREF(rest);
    return -1;
}

/* Make a list of (SideStats, runs) of a list of sides, in place. */
static int name_runs(PyObject *timed) {
    for (Py_ssize_t i = 0; timed && i < PyList_GET_SIZE(timed); i++) {
        Side *side = (Side *)PyList_GET_ITEM(timed, i);
        PyObject *item = Py_BuildValue("(OL)", side->stats, side->runs);
        side->runs = 0;
        side->timed = false;
        if (!item) return -1;
        PyList_SetItem(timed, i, item);
    }
    return 0;
}

static PyObject *path_run(FastPath *self, PyObject *const *args, Py_ssize_t argc) {
    if (argc != 3) return PyErr_Format(PyExc_TypeError, "two times and a flag are needed");
    long long now_ns = PyLong_AsLongLong(args[0]), until_ns = PyLong_AsLongLong(args[1]);
    bool opened = args[2] == Py_True;
    PyObject *events = PyList_New(0), *handed = NULL, *timed = NULL;
    if (!events || PyErr_Occurred()) goto failed;
    while (self->next < self->count && !handed) {
        int i = self->next++, fd = self->events[i].data.fd;
        Lane *lane = fd < self->lanes_size ? self->lanes[fd] : NULL;
        if (opened && lane && serves(self, lane) && self->events[i].events == EPOLLIN) {
            int done = step(self, lane, now_ns, &handed, &timed);
            if (done < 0) goto failed;
            if (i % CLOCK_EACH == CLOCK_EACH - 1 && clock_ns() >= until_ns) opened = false;
            if (done < 2) continue;
        }
        if (lane) close_lane(lane);
        PyObject *event = Py_BuildValue("(iI)", fd, self->events[i].events);
        int appended = event ? PyList_Append(events, event) : -1;
        Py_XDECREF(event);
        if (appended < 0) goto failed;
    }
    if (name_runs(timed) < 0) goto failed;
    return Py_BuildValue("(NNN)", events, handed ? handed : Py_NewRef(Py_None), timed ? timed : Py_NewRef(Py_None));
failed:
    self->count = 0;
    Py_XDECREF(events);
    Py_XDECREF(handed);
    Py_XDECREF(timed);
    return NULL;
}

static PyObject *path_take_channels(FastPath *self, PyObject *unused) {
    PyObject *lanes = self->channels;
    if (PyList_GET_SIZE(lanes) == 0) return PyList_New(0);
    if (!(self->channels = PyList_New(0))) {
        self->channels = lanes;
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lanes); i++) {
        Lane *lane = (Lane *)PyList_GET_ITEM(lanes, i);
        PyObject *item = Py_BuildValue(
            "(iLLLLLLL)", lane->fd, lane->frames_received, lane->bytes_received, lane->frames_sent, lane->bytes_sent, lane->wire_received,
            lane->wire_sent, lane->last_ns);
        lane->frames_received = lane->bytes_received = lane->frames_sent = lane->bytes_sent = lane->wire_received = lane->wire_sent = 0;
        lane->touched = false;
        if (!item) {
            Py_DECREF(lanes);
            return NULL;
        }
        PyList_SetItem(lanes, i, item);
    }
    return lanes;
}

static PyObject *path_take_begun(FastPath *self, PyObject *unused) {
    PyObject *lanes = self->beginnings, *found = PyList_New(0);
    if (!found || PyList_GET_SIZE(lanes) == 0) return found;
    PyObject *next = PyList_New(0);
    if (!next) {
        Py_DECREF(found);
        return NULL;
    }
    self->beginnings = next;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lanes); i++) {
        Lane *lane = (Lane *)PyList_GET_ITEM(lanes, i);
        lane->listed = false;
        if (!lane->begun || !found) continue;
        close_lane(lane);
        PyObject *item = Py_BuildValue("(iN)", lane->fd, take_begun(lane));
        if (!item || PyList_Append(found, item) < 0) Py_CLEAR(found);
        Py_XDECREF(item);
    }
    Py_DECREF(lanes);
    return found;
}

static PyObject *path_take_sides(FastPath *self, PyObject *unused) {
    PyObject *sides = self->sides;
    if (!(self->sides = PyList_New(0))) {
        self->sides = sides;
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sides); i++) {
        Side *side = (Side *)PyList_GET_ITEM(sides, i);
        PyObject *sizes = PyList_New(BUCKETS), *item;
        for (int bucket = 0; sizes && bucket < BUCKETS; bucket++) PyList_SET_ITEM(sizes, bucket, PyLong_FromLongLong(side->sizes[bucket]));
        item = Py_BuildValue(
            "(OLLLLLLN)", side->stats, side->reads, side->frames_received, side->bytes_received, side->writes, side->frames_sent, side->bytes_sent,
            sizes);
        side->reads = side->bytes_received = side->frames_received = side->writes = side->bytes_sent = side->frames_sent = 0;
        memset(side->sizes, 0, sizeof side->sizes);
        side->touched = false;
        if (!item) {
            Py_DECREF(sides);
            return NULL;
        }
        PyList_SetItem(sides, i, item);
    }
    return sides;
}

static PyMethodDef path_methods[] = {
    {"add", (PyCFunction)path_add, METH_O, "Add the lane of a descriptor, closed."},
    {"remove", (PyCFunction)path_remove, METH_O, "Close a lane, and forget it."},
    {"open", (PyCFunction)(void *)path_open, METH_FASTCALL, "open(lane, peer, limit, before_send): write the whole frames that a lane receives to its peer."},
    {"keep", (PyCFunction)(void *)path_keep, METH_FASTCALL, "keep(lane, begun): keep the beginning of a frame. Returns whether that is possible."},
    {"served", (PyCFunction)path_served, METH_O, "The descriptor of an open lane's peer, and its limit; None: the lane is closed."},
    {"close_all", (PyCFunction)path_close_all, METH_NOARGS, "Close all lanes."},
    {"wait", (PyCFunction)path_wait, METH_O, "Wait for events for so many ms at most."},
    {"run", (PyCFunction)(void *)path_run, METH_FASTCALL, "run(now_ns, until_ns, opened): handle events of the last wait."},
    {"take_channels", (PyCFunction)path_take_channels, METH_NOARGS, "Take the counts of channels."},
    {"take_begun", (PyCFunction)path_take_begun, METH_NOARGS, "Take the begun frames, and close their lanes."},
    {"take_sides", (PyCFunction)path_take_sides, METH_NOARGS, "Take the counts of sides."},
    {NULL},
};

static PyTypeObject FastPathType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framegate.proxy.network.fast_path.FastPath",
    .tp_basicsize = sizeof(FastPath),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)path_init,
    .tp_dealloc = (destructor)path_dealloc,
    .tp_methods = path_methods,
};

static PyMethodDef functions[] = {
    {"load_openssl", (PyCFunction)load_openssl, METH_O, "Look OpenSSL's functions up in what an extension of Python has loaded."},
    {NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "fast_path", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_fast_path(void) {
    PyTypeObject *types[] = {&SideType, &TlsConnectionType, &LaneType, &FastPathType};
    PyObject *made = PyModule_Create(&module);
    for (size_t i = 0; made && i < sizeof types / sizeof *types; i++)
        if (PyModule_AddType(made, types[i]) < 0) Py_CLEAR(made);
    return made;
}
