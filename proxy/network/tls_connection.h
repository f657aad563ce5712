/* A TLS connection whose records OpenSSL reads and writes in C, behind the handshake: no ``bytes`` and no interpreter between it and the socket.
 *
 * The connection is one of Python's ``ssl``. Its functions are looked up in the libssl that Python has loaded, so no header of OpenSSL is needed.
 * Both BIOs are replaced by one that all connections share: what OpenSSL reads is a part of ``input``, and what it writes goes to ``output``. Both are
 * empty between two calls. The lock of the interpreter is held meanwhile.
 *
 * OpenSSL is given whole records only, as in ``tls_wire``. The incomplete one, and those that a read has no room for, stay with the connection.
 */
#include <dlfcn.h>

typedef struct ssl_st SSL;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;

#define OPENSSL(F)                                                              \
    F(int, SSL_read_ex, (SSL *, void *, size_t, size_t *))                      \
    F(int, SSL_write_ex, (SSL *, const void *, size_t, size_t *))               \
    F(int, SSL_get_error, (const SSL *, int))                                   \
    F(int, SSL_pending, (const SSL *))                                          \
    F(int, SSL_shutdown, (SSL *))                                               \
    F(void, SSL_set0_rbio, (SSL *, BIO *))                                      \
    F(void, SSL_set0_wbio, (SSL *, BIO *))                                      \
    F(BIO_METHOD *, BIO_meth_new, (int, const char *))                          \
    F(int, BIO_meth_set_read, (BIO_METHOD *, int (*)(BIO *, char *, int)))      \
    F(int, BIO_meth_set_write, (BIO_METHOD *, int (*)(BIO *, const char *, int))) \
    F(int, BIO_meth_set_ctrl, (BIO_METHOD *, long (*)(BIO *, int, long, void *))) \
    F(BIO *, BIO_new, (const BIO_METHOD *))                                     \
    F(int, BIO_up_ref, (BIO *))                                                 \
    F(void, BIO_set_init, (BIO *, int))                                         \
    F(void, BIO_set_flags, (BIO *, int))                                        \
    F(void, BIO_clear_flags, (BIO *, int))                                      \
    F(unsigned long, ERR_peek_last_error, (void))                               \
    F(const char *, ERR_reason_error_string, (unsigned long))                   \
    F(void, ERR_clear_error, (void))

#define DECLARE(result, name, arguments) static result(*name) arguments;
OPENSSL(DECLARE)

enum {
    SSL_ERROR_WANT_READ = 2, SSL_ERROR_ZERO_RETURN = 6,             /* of ssl.h */
    BIO_RETRY_READ = 0x01 | 0x08, BIO_RETRY = 0x0f, BIO_CTRL_FLUSH = 11, BIO_KIND = 0x0400 | 0x7f,  /* of bio.h */
    RECORD_HEADER = 5,
    PLAIN_RECORD = 16384,    /* the most plaintext of a record */
    LONGEST = 17408,         /* the longest record, as in tls_record.py */
    RECORD = PLAIN_RECORD + 256 + 5,
    SMALL_READ = 448,        /* as in tls.py */
    AHEAD = 262144,          /* plaintext that is encrypted before the socket has taken it, as in tls.py */
    WIRE_SIZE = READ_SIZE + 2 * LONGEST,
    LEAST_READ = 4096, MOST_READ = 65536,  /* ciphertext that a lane reads at once */
};

/* What a connection holds, or what happened to it; ``tls_connection.py`` reads these bits. */
enum { BUFFERED = 1, NOTIFIED = 2, FIN = 4, FAILED = 8, WRITTEN = 16 };

typedef struct {
    PyObject_HEAD
    PyObject *object;        /* the _ssl._SSLSocket */
    SSL *ssl;
    int fd;
    unsigned flags;
    int portion;             /* what a lane reads next */
    unsigned char *held;     /* ciphertext that OpenSSL does not have */
    size_t held_length;
    PyObject *written;       /* bytes that OpenSSL wrote by itself; NULL: none */
    const char *failure;     /* OpenSSL's reason; NULL: none */
} TlsConnection;

static BIO *bio;             /* NULL: OpenSSL was not found */
static const unsigned char *input;
static size_t input_length;
static unsigned char *output, *wire;
static size_t output_length, output_size;
static const unsigned char *tail;  /* of what ``tls_fill`` read: the incomplete record */
static size_t tail_length;

static int bio_read(BIO *self, char *data, int length) {
    BIO_clear_flags(self, BIO_RETRY);
    if (input_length == 0) {
        BIO_set_flags(self, BIO_RETRY_READ);
        return -1;
    }
    if ((size_t)length > input_length) length = (int)input_length;
    memcpy(data, input, length);
    input += length;
    input_length -= length;
    return length;
}

static int bio_write(BIO *self, const char *data, int length) {
    BIO_clear_flags(self, BIO_RETRY);
    if (output_length + length > output_size) {
        size_t size = (output_length + length) * 5 / 4 + PLAIN_RECORD;
        unsigned char *larger = realloc(output, size);
        if (!larger) return -1;
        output = larger;
        output_size = size;
    }
    memcpy(output + output_length, data, length);
    output_length += length;
    return length;
}

static long bio_ctrl(BIO *self, int command, long number, void *pointer) { return command == BIO_CTRL_FLUSH; }

static PyObject *load_openssl(PyObject *module, PyObject *file) {
    static const struct { const char *name; void **function; } functions[] = {
#define NAMED(result, name, arguments) {#name, (void **)&name},
        OPENSSL(NAMED)
    };
#ifdef Py_GIL_DISABLED
    Py_RETURN_FALSE;  /* all connections share their buffers */
#endif
    if (bio) Py_RETURN_TRUE;
    const char *name = PyUnicode_AsUTF8(file);
    void *library = name ? dlopen(name, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (!name) return NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!library || !(*functions[i].function = dlsym(library, functions[i].name))) Py_RETURN_FALSE;
    BIO_METHOD *method = BIO_meth_new(BIO_KIND, "framegate");
    wire = malloc(WIRE_SIZE);
    if (!wire || !method || !BIO_meth_set_read(method, bio_read) || !BIO_meth_set_write(method, bio_write) || !BIO_meth_set_ctrl(method, bio_ctrl))
        return PyErr_NoMemory();
    if (!(bio = BIO_new(method))) return PyErr_NoMemory();
    BIO_set_init(bio, 1);
    Py_RETURN_TRUE;
}

/* Begin the calls for a connection: drop what calls of another one left. OpenSSL judges a call by the errors that it finds. */
static void tls_begin(void) {
    input_length = output_length = 0;
    if (ERR_peek_last_error()) ERR_clear_error();
}

/* --- in ------------------------------------------------------------------------------------------------------------------------- */

static size_t record_size(const unsigned char *data) { return RECORD_HEADER + (data[3] << 8 | data[4]); }

/* Divide what is in ``wire`` into whole records, the input of OpenSSL, and the rest. A record that OpenSSL refuses because of its header is not
 * waited for. */
static void divide(size_t length) {
    size_t end = 0;
    while (end + RECORD_HEADER <= length && end + record_size(wire + end) <= length) end += record_size(wire + end);
    const unsigned char *begun = wire + end;
    if (length - end >= RECORD_HEADER && (begun[1] != 3 || record_size(begun) > LONGEST)) end = length;
    input = wire, input_length = end;
    tail = wire + end, tail_length = length - end;
}

/* Read the socket once for ``size`` bytes, unless records are held that OpenSSL has not read. Returns how many were read, 0: none was needed, or the end
 * of the stream (FIN), -1: see errno. ``tls_keep`` follows. */
static ssize_t tls_fill(TlsConnection *self, size_t size) {
    ssize_t received = 0;
    tls_begin();
    if (!(self->flags & BUFFERED)) {
        received = recv(self->fd, wire + self->held_length, size, 0);
        if (received < 0) return -1;
        if (received == 0) self->flags |= FIN;
    }
    if (self->held_length) memcpy(wire, self->held, self->held_length);
    divide(self->held_length + received);
    return received;
}

/* Keep the reason of OpenSSL for a call that failed. */
static void tls_fail(TlsConnection *self) {
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    if (!self->failure) self->failure = reason ? reason : "unknown error";
    self->flags |= FAILED;
    ERR_clear_error();
}

/* Decrypt until there are ``size`` bytes, or OpenSSL has no input left. Returns how many there are. */
static size_t tls_decrypt(TlsConnection *self, unsigned char *plain, size_t size) {
    size_t total = 0, length;
    bool more = self->flags & BUFFERED;
    while (total < size && (input_length || more)) {
        size_t wanted = size - total < PLAIN_RECORD ? size - total : PLAIN_RECORD;
        if (!SSL_read_ex(self->ssl, plain + total, wanted, &length)) {
            int error = SSL_get_error(self->ssl, 0);
            if (error == SSL_ERROR_ZERO_RETURN) self->flags |= NOTIFIED;
            else if (error != SSL_ERROR_WANT_READ) tls_fail(self);
            break;
        }
        total += length;
        more = length == wanted && SSL_pending(self->ssl) > 0;
    }
    self->flags = more && total == size ? self->flags | BUFFERED : self->flags & ~BUFFERED;
    return total;
}

/* Adapt what a lane reads at once, after a read of ``received`` bytes with ``whole`` bytes of records, which held ``length`` bytes of plaintext.
 * OpenSSL needs 20 ms for 64 KiB of key updates, and others wait meanwhile. */
static void tls_adapt(TlsConnection *self, size_t received, size_t whole, size_t length) {
    if (length < whole / 8) self->portion = LEAST_READ;
    else if (received == (size_t)self->portion && self->portion < MOST_READ) self->portion *= 4;
}

/* Take what OpenSSL wrote by itself: an answer to a key update, or an alert. */
static int tls_take_output(TlsConnection *self) {
    if (output_length == 0) return 0;
    PyObject *written = PyBytes_FromStringAndSize((char *)output, output_length);
    output_length = 0;
    if (!written) return -1;
    if (self->written) PyBytes_ConcatAndDel(&self->written, written);
    else self->written = written;
    if (!self->written) return -1;
    self->flags |= WRITTEN;
    return 0;
}

/* Keep what OpenSSL has not read, unless the stream has ended or failed. Returns -1: an exception. */
static int tls_keep(TlsConnection *self) {
    if (self->flags & (NOTIFIED | FAILED)) input_length = tail_length = 0;
    size_t length = input_length + tail_length;  /* they are adjacent */
    if (length > self->held_length || length == 0) {
        free(self->held);
        self->held = length ? malloc(length) : NULL;
        if (length && !self->held) {
            self->held_length = 0;
            PyErr_NoMemory();
            return -1;
        }
    }
    if (length) memcpy(self->held, input_length ? input : tail, length);
    self->held_length = length;
    if (input_length) self->flags |= BUFFERED;
    input_length = 0;
    return tls_take_output(self);
}

static PyObject *tls_read(TlsConnection *self, PyObject *argument) {
    Py_ssize_t size = PyLong_AsSsize_t(argument), wanted = size < SMALL_READ ? RECORD : size < READ_SIZE ? size : READ_SIZE;
    if (size < 1) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a read of %zd bytes", size);
    ssize_t received = tls_fill(self, wanted);
    if (received < 0 && errno != EAGAIN && errno != EINTR) return PyErr_SetFromErrno(PyExc_OSError);
    if (received < 0) return Py_BuildValue("(OiI)", Py_None, 0, self->flags & ~BUFFERED);
    size_t most = input_length + (self->flags & BUFFERED ? SSL_pending(self->ssl) : 0), length = 0;
    if (most > (size_t)size) most = size;
    PyObject *plain = most ? PyBytes_FromStringAndSize(NULL, most) : Py_NewRef(Py_None);
    if (plain && most) length = tls_decrypt(self, (unsigned char *)PyBytes_AS_STRING(plain), most);
    if (tls_keep(self) < 0) Py_CLEAR(plain);
    if (plain && most && length < most) _PyBytes_Resize(&plain, length);
    return plain ? Py_BuildValue("(NnI)", plain, received, self->flags & ~BUFFERED) : NULL;
}

/* --- out ------------------------------------------------------------------------------------------------------------------------ */

/* Move what OpenSSL wrote by itself to ``output``, before the records that it writes next: they are numbered. Returns false: no memory. */
static bool tls_put_written(TlsConnection *self) {
    if (!self->written) return true;
    if (bio_write(bio, PyBytes_AS_STRING(self->written), (int)PyBytes_GET_SIZE(self->written)) < 0) return false;
    Py_CLEAR(self->written);
    self->flags &= ~WRITTEN;
    return true;
}

/* Encrypt to ``output``. Returns false: OpenSSL failed. */
static bool tls_encrypt(TlsConnection *self, const unsigned char *plain, size_t length) {
    size_t written;
    if (!tls_put_written(self)) {
        tls_fail(self);
        return false;
    }
    for (; length; plain += written, length -= written) {
        if (!SSL_write_ex(self->ssl, plain, length, &written)) {
            tls_fail(self);
            return false;
        }
    }
    return true;
}

/* Write ``output`` to the socket, once. Returns how much it took; ``code``: an errno, or 0. */
static size_t tls_send(TlsConnection *self, int *code) {
    ssize_t sent = send(self->fd, output, output_length, MSG_NOSIGNAL);
    *code = sent >= 0 || errno == EAGAIN || errno == EINTR ? 0 : errno;
    return sent < 0 ? 0 : sent;
}

/* The ciphertext that the socket did not take, as bytes, or None. */
static PyObject *tls_rest(size_t sent) {
    PyObject *rest = sent < output_length ? PyBytes_FromStringAndSize((char *)output + sent, output_length - sent) : Py_NewRef(Py_None);
    output_length = 0;
    return rest;
}

static PyObject *tls_write(TlsConnection *self, PyObject *pieces) {
    unsigned char joined[PLAIN_RECORD];
    Py_ssize_t count = PyList_Check(pieces) ? PyList_GET_SIZE(pieces) : -1, taken = 0, joined_length = 0;
    bool failed = false;
    if (count < 0) return PyErr_Format(PyExc_TypeError, "a list is needed");
    tls_begin();
    for (Py_ssize_t i = 0; i < count && taken < AHEAD && !failed; i++) {
        Py_buffer piece;
        if (PyObject_GetBuffer(PyList_GET_ITEM(pieces, i), &piece, PyBUF_SIMPLE) < 0) {
            output_length = 0;
            return NULL;
        }
        Py_ssize_t length = piece.len < AHEAD - taken ? piece.len : AHEAD - taken;
        bool joins = count > 1 && length <= PLAIN_RECORD - joined_length;  /* one record: the peer reads all of it at once */
        if (!joins && joined_length) failed = !tls_encrypt(self, joined, joined_length), joined_length = 0;
        if (joins) memcpy(joined + joined_length, piece.buf, length), joined_length += length;
        else failed = failed || !tls_encrypt(self, piece.buf, length);
        taken += length;
        PyBuffer_Release(&piece);
    }
    if (joined_length) failed = failed || !tls_encrypt(self, joined, joined_length);
    int code = 0;
    size_t sent = 0;
    if (output_length && !failed) sent = tls_send(self, &code);
    PyObject *rest = tls_rest(sent);
    return rest ? Py_BuildValue("(nnNi)", failed ? -1 : taken, (Py_ssize_t)sent, rest, code) : NULL;
}

static PyObject *tls_end(TlsConnection *self, PyObject *unused) {
    tls_begin();
    if (!tls_put_written(self)) return PyErr_NoMemory();
    int result = SSL_shutdown(self->ssl);
    if (result < 0) tls_fail(self);
    if (result == 1) self->flags |= NOTIFIED;
    PyObject *written = PyBytes_FromStringAndSize((char *)output, output_length);
    output_length = 0;
    return written;
}

/* --- the object ----------------------------------------------------------------------------------------------------------------- */

static PyObject *tls_take_written(TlsConnection *self, PyObject *unused) {
    PyObject *written = self->written ? self->written : PyBytes_FromStringAndSize(NULL, 0);
    self->written = NULL;
    self->flags &= ~WRITTEN;
    return written;
}

static PyObject *tls_get_held(TlsConnection *self, void *unused) { return PyBytes_FromStringAndSize((char *)self->held, self->held_length); }

static PyObject *tls_get_failure(TlsConnection *self, void *unused) { return PyUnicode_FromString(self->failure ? self->failure : ""); }

static int tls_traverse(TlsConnection *self, visitproc visit, void *arg) {
    Py_VISIT(self->object);
    return 0;
}

static int tls_clear(TlsConnection *self) {
    Py_CLEAR(self->object);
    return 0;
}

static void tls_dealloc(TlsConnection *self) {
    PyObject_GC_UnTrack(self);
    tls_clear(self);
    Py_XDECREF(self->written);
    free(self->held);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* The begin of a _ssl._SSLSocket, in Python 3.11 to 3.14. */
typedef struct {
    PyObject_HEAD
    PyObject *socket;        /* NULL: it has BIOs */
    SSL *ssl;
    PyObject *context;
} SslObject;

static int tls_init(TlsConnection *self, PyObject *args, PyObject *kwargs) {
    PyObject *object;
    Py_buffer held;
    int fd;
    if (!PyArg_ParseTuple(args, "Oiy*", &object, &fd, &held)) return -1;
    PyObject *context = PyObject_GetAttrString(object, "context");
    SslObject *inner = (SslObject *)object;
    int result = -1;
    /* Where the context is at its place, the connection is at its own. */
    bool known = context && bio && Py_TYPE(object)->tp_basicsize >= (Py_ssize_t)sizeof *inner && !strcmp(Py_TYPE(object)->tp_name, "_ssl._SSLSocket")
                 && !inner->socket && inner->ssl && inner->context == context;
    if (!known && context) PyErr_SetString(PyExc_ValueError, "no connection of this libssl");
    if (known && held.len > READ_SIZE) PyErr_SetString(PyExc_ValueError, "too many bytes are held"), known = false;
    if (known) {
        tls_begin();
        memcpy(wire, held.buf, held.len);
        divide(held.len);
        Py_XSETREF(self->object, Py_NewRef(object));
        self->ssl = inner->ssl;
        self->fd = fd;
        self->portion = LEAST_READ;
        BIO_up_ref(bio);
        SSL_set0_rbio(self->ssl, bio);
        BIO_up_ref(bio);
        SSL_set0_wbio(self->ssl, bio);
        result = tls_keep(self);
        if (SSL_pending(self->ssl) > 0) self->flags |= BUFFERED;
    }
    Py_XDECREF(context);
    PyBuffer_Release(&held);
    return result;
}

static PyMethodDef tls_methods[] = {
    {"read", (PyCFunction)tls_read, METH_O, "read(size): read the socket once, and decrypt."},
    {"write", (PyCFunction)tls_write, METH_O, "write(pieces): encrypt, and write the socket once."},
    {"end", (PyCFunction)tls_end, METH_NOARGS, "Return our close-notify."},
    {"take_written", (PyCFunction)tls_take_written, METH_NOARGS, "Take the bytes that OpenSSL wrote by itself."},
    {NULL},
};

static PyGetSetDef tls_attributes[] = {
    {"held", (getter)tls_get_held, NULL, "Ciphertext that OpenSSL does not have.", NULL},
    {"failure", (getter)tls_get_failure, NULL, "OpenSSL's reason, or empty.", NULL},
    {NULL},
};

static PyMemberDef tls_members[] = {
    {"flags", T_UINT, offsetof(TlsConnection, flags), READONLY, "What it holds, or what happened to it."},
    {NULL},
};

static PyTypeObject TlsConnectionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "framegate.proxy.network.fast_path.TlsConnection",
    .tp_basicsize = sizeof(TlsConnection),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)tls_init,
    .tp_traverse = (traverseproc)tls_traverse,
    .tp_clear = (inquiry)tls_clear,
    .tp_dealloc = (destructor)tls_dealloc,
    .tp_methods = tls_methods,
    .tp_getset = tls_attributes,
    .tp_members = tls_members,
};
