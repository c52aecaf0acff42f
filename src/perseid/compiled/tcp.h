/* Public resolution over TCP: connections whose messages the thread answers, and those for the event loop.
 *
 * The thread keeps only connections that wait for a next request: it has no buffers for them. A connection that has sent
 * anything but a whole public resolution, or has not read its response, is for the event loop until it ends.
 */
#ifndef PERSEID_TCP_H
#define PERSEID_TCP_H

#include <sys/epoll.h>

#include "loop.h"

enum {
    MAX_RECEIVED = 2048,    /* more than a public resolution has; the event loop reads the rest */
    MAX_QUEUED = 3 * BATCH, /* connections for the event loop, which takes fewer at a time */
};

#define UDP_EVENT UINT32_MAX /* of the epoll descriptor; other numbers are those of this file */

/* Why a connection is for the event loop. */
typedef enum {
    UNADMITTED,    /* it may be one too many, and nothing was read; all others have been counted until now */
    UNANSWERED,    /* the data is what was received */
    ANSWERED,      /* the data is the rest of a response, after which the connection ends */
    ANSWERED_KEPT, /* the same, and the client keeps the connection */
} reason_t;

/* A connection for the event loop, which owns its descriptor. */
typedef struct {
    int descriptor;
    address_t peer;
    reason_t reason;
    size_t size;
    uint8_t data[MAX_RESPONSE];
} connection_t;

/* The listeners stay the caller's. NULL: no memory. */
tcp_t *tcp_create(const int *listeners, size_t listener_count);
void tcp_destroy(loop_t *loop);

/* Before the thread begins, and after its end, which is that of all connections that it keeps. */
void tcp_start(loop_t *loop);
void tcp_stop(loop_t *loop);

/* Whether the event loop must first take connections; with the lock of the queues. */
bool tcp_must_wait(const tcp_t *tcp, double now);

/* Whether there is room in the queue for all connections of a round; the others wait in the kernel. */
bool tcp_has_room(loop_t *loop);

/* End connections that were idle for too long, and accept again after a pause. */
void tcp_maintain(loop_t *loop, double now);

/* Accept connections and read them: answer what they have sent, or leave them to the event loop. */
void tcp_handle(loop_t *loop, const struct epoll_event *events, int count);

/* Take the oldest connection that is waiting. */
bool tcp_take_connection(loop_t *loop, connection_t *connection);

#endif
