/* TLS under a connection, for targets that speak nothing else. Without OpenSSL's headers only the refusal is built. */
#include "load.h"

#include <errno.h>
#include <fcntl.h>

#ifdef WITH_TLS
#include <openssl/ssl.h>

enum { RECORD = 16 * 1024 };

void conn_secure(struct conn *c)
{
    static SSL_CTX *context;
    if (!context && !(context = SSL_CTX_new(TLS_client_method())))
        die("no TLS here");
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, NULL); /* the broker under test made its own certificate */
    SSL *tls = SSL_new(context);
    if (!tls || !SSL_set_fd(tls, c->fd) || SSL_connect(tls) != 1)
        die("TLS handshake failed");
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->tls = tls;
}

static ssize_t outcome(SSL *tls, int result)
{
    switch (SSL_get_error(tls, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: die("TLS failed");
    }
}

/* Whole records only: what is left inside TLS wakes nobody who polls the socket. */
ssize_t tls_read(struct conn *c, uint8_t *into, size_t room)
{
    size_t got = 0;
    while (room - got >= RECORD) {
        int result = SSL_read(c->tls, into + got, (int)(room - got));
        if (result <= 0)
            return got ? (ssize_t)got : outcome(c->tls, result);
        got += (size_t)result;
    }
    return (ssize_t)got;
}

ssize_t tls_write(struct conn *c, const uint8_t *bytes, size_t size)
{
    int result = SSL_write(c->tls, bytes, (int)size);
    return result > 0 ? result : outcome(c->tls, result);
}
#else
void conn_secure(struct conn *c)
{
    (void)c;
    die("built without TLS: apt install libssl-dev");
}

ssize_t tls_read(struct conn *c, uint8_t *into, size_t room)
{
    (void)c, (void)into, (void)room;
    errno = ENOTSUP;
    return -1;
}

ssize_t tls_write(struct conn *c, const uint8_t *bytes, size_t size)
{
    (void)c, (void)bytes, (void)size;
    errno = ENOTSUP;
    return -1;
}
#endif
