/* Public resolution over UDP: datagrams that the thread answers, and those for the event loop. */
#ifndef PERSEID_UDP_H
#define PERSEID_UDP_H

#include "loop.h"

enum {
    MAX_READ = MAX_PACKET + 1, /* one more than any peer sends, to detect longer ones */
    INFO_SIZE = 20,            /* in6_pktinfo; in_pktinfo is shorter */
};

/* A datagram for the event loop: its sender, and the ancillary data with its local address. */
typedef struct {
    address_t sender;
    uint8_t info[INFO_SIZE];
    size_t info_size;
    size_t size;
    uint8_t data[MAX_READ];
} datagram_t;

/* The socket stays the caller's. NULL: no memory, or no such socket. `free` destroys it. */
udp_t *udp_create(int socket);

int udp_socket(const udp_t *udp);

/* Whether the last batch was full, so that there is probably more. */
bool udp_is_full(const udp_t *udp);

/* Whether the event loop must first take datagrams; with the lock of the queues. */
bool udp_must_wait(const udp_t *udp, double now);

/* Read a batch of datagrams, and answer them or leave them to the event loop. */
void udp_handle_batch(loop_t *loop);

/* Take the oldest of what is waiting; return how many. */
size_t udp_take_datagrams(loop_t *loop, datagram_t *datagrams, size_t limit);

#endif
