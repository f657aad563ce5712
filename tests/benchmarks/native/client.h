/* A client's connection, plain or TLS 1.3: opened, read and written. */
#ifndef FRAMEGATE_BENCH_CLIENT_H
#define FRAMEGATE_BENCH_CLIENT_H

#include "pattern.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#define TLS_WRITE 16384

static SSL_CTX *tls; /* NULL: plaintext */

static inline void prepare_tls(void) {
    tls = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION);
    SSL_CTX_set_options(tls, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (SSL_CTX_set_ciphersuites(tls, "TLS_AES_128_GCM_SHA256") != 1) die("no such cipher suite");
}

static inline SSL *new_tls(int fd) {
    SSL *ssl = SSL_new(tls);
    SSL_set_fd(ssl, fd);
    SSL_set_connect_state(ssl);
    return ssl;
}

/* A count, -1: it would block, 0: the connection is over. */
static inline ssize_t io_result(SSL *ssl, ssize_t count) {
    if (count > 0) return count;
    if (ssl == NULL) return count < 0 && (errno == EAGAIN || errno == EINTR) ? -1 : 0;
    int error = SSL_get_error(ssl, (int)count);
    ERR_clear_error();
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? -1 : 0;
}

static inline ssize_t read_bytes(int fd, SSL *ssl, void *to, size_t size) {
    return io_result(ssl, ssl != NULL ? SSL_read(ssl, to, (int)size) : recv(fd, to, size, 0));
}

static inline ssize_t write_bytes(int fd, SSL *ssl, const void *from, size_t size) {
    return io_result(ssl, ssl != NULL ? SSL_write(ssl, from, (int)size) : send(fd, from, size, MSG_NOSIGNAL));
}

#endif
