/* A thread that answers public resolution on one UDP socket, beside the event loop of its worker.
 *
 * It never needs Python's interpreter lock. What it does not answer goes to a queue that the event loop empties; while
 * that does not, the thread stops reading, so that other workers can serve the socket.
 */
#ifndef PERSEID_UDP_H
#define PERSEID_UDP_H

#include <netinet/in.h>

#include "traffic.h"
#include "tally.h"
#include "view.h"

enum {
    MAX_READ = MAX_PACKET + 1, /* one more than any peer sends, to detect longer ones */
    INFO_SIZE = 20,            /* in6_pktinfo; in_pktinfo is shorter */
    COUNTED_CODES = 512,
    QUEUE_SIZE = 256, /* datagrams for the event loop, which takes fewer at a time */
    LOG_SIZE = 1024,  /* answered requests for the access log */
};

typedef union {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
} address_t;

/* A datagram for the event loop: its sender, and the ancillary data with its local address. */
typedef struct {
    address_t sender;
    uint8_t info[INFO_SIZE];
    size_t info_size;
    size_t size;
    uint8_t data[MAX_READ];
} datagram_t;

/* An answered request for the access log. */
typedef struct {
    address_t sender;
    uint32_t code;
    uint32_t microseconds;
    size_t name_size;
    uint8_t name[MAX_PACKET];
} log_entry_t;

typedef struct {
    resolution_settings_t resolution;
    bool resolves; /* whether anything is answered here */
    bool logs;
    traffic_limit_t traffic;
    uint8_t refusal_text[64];
    size_t refusal_text_size;
} udp_settings_t;

typedef struct {
    uint64_t responses[COUNTED_CODES]; /* by code */
    uint64_t bytes_sent;
    uint64_t rate_limited;
    uint64_t unsent;
    uint64_t overflows; /* datagrams for which the queue had no room */
} udp_counts_t;

typedef struct udp_loop udp_loop_t;

/* Create a loop for a socket, which stays the caller's. NULL: no memory or no event descriptor. */
udp_loop_t *udp_create(int socket);
void udp_destroy(udp_loop_t *loop); /* stops it first */

void udp_configure(udp_loop_t *loop, const udp_settings_t *settings);

/* Answer from a view; NULL: from none. */
void udp_use_view(udp_loop_t *loop, view_t *view);

/* Start the thread; an error number or 0. `udp_stop` waits for the end of what it is answering. */
int udp_start(udp_loop_t *loop);
void udp_stop(udp_loop_t *loop);

/* Monotonic seconds at which the thread was last seen running. */
double udp_last_beat(const udp_loop_t *loop);

/* Readable when there is something to take. */
int udp_event(const udp_loop_t *loop);

/* Take the oldest of what is waiting; return how many. */
size_t udp_take_datagrams(udp_loop_t *loop, datagram_t *datagrams, size_t limit);
size_t udp_take_log(udp_loop_t *loop, log_entry_t *entries, size_t limit);

void udp_read_counts(udp_loop_t *loop, udp_counts_t *counts);

/* Start a new tally, and return the one until now: it stays valid until the next call. */
tally_t *udp_take_tally(udp_loop_t *loop);

#endif
