/* A thread that answers public resolution over UDP and TCP, beside the event loop of its worker.
 *
 * It never needs Python's interpreter lock. What it does not answer goes to queues that the event loop empties; while
 * that does not, the thread stops reading, so that other workers can serve the sockets.
 */
#ifndef PERSEID_LOOP_H
#define PERSEID_LOOP_H

#include <netinet/in.h>

#include "tally.h"
#include "traffic.h"
#include "view.h"

enum {
    BATCH = 64, /* datagrams or connections handled before others get their turn */
    COUNTED_CODES = 512,
    LOG_SIZE = 1024, /* answered requests for the access log */
};

typedef union {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
} address_t;

typedef struct udp udp_t;
typedef struct tcp tcp_t;

/* An answered request for the access log. */
typedef struct {
    address_t sender;
    bool is_tcp;
    uint32_t code;
    uint32_t microseconds;
    size_t name_size;
    uint8_t name[MAX_PACKET];
} log_entry_t;

typedef struct {
    bool resolves; /* whether anything is answered here */
    bool logs;
} transport_settings_t;

/* Limits of connections, and their counters: rows of this thread, of the event loop, and of other workers. */
typedef struct {
    _Atomic uint32_t *counters;
    size_t rows, own_row;
    uint64_t secret, size; /* of a row, without its first counter */
    uint32_t most, most_of_network;
    double idle_seconds;
} connection_settings_t;

typedef struct {
    resolution_settings_t resolution;
    traffic_limit_t traffic; /* over UDP; its exempt networks have no limit of connections either */
    uint8_t refusal_text[64];
    size_t refusal_text_size;
    transport_settings_t udp, tcp;
    connection_settings_t connections;
} loop_settings_t;

typedef struct {
    uint64_t udp[COUNTED_CODES], tcp[COUNTED_CODES]; /* responses by code */
    uint64_t bytes_sent; /* this and the next three: over UDP */
    uint64_t rate_limited;
    uint64_t unsent;
    uint64_t overflows;
    uint64_t idle;      /* connections that were idle for too long */
    uint64_t exhausted; /* how often there were no descriptors */
} loop_counts_t;

/* Members are for the files of the thread. */
typedef struct loop {
    udp_t *udp; /* or NULL */
    tcp_t *tcp;
    int event, epoll;
    pthread_t thread;
    bool is_running;
    atomic_bool is_stopping;
    _Atomic double last_beat;

    pthread_mutex_t lock; /* of everything up to the queues; the thread holds it while it handles a batch */
    loop_settings_t settings;
    view_t *view;
    loop_counts_t counts;
    tally_t *tally, *taken_tally;

    pthread_mutex_t queue_lock; /* of the queues; never held for long, and never by who waits for the other lock */
    log_entry_t log[LOG_SIZE];
    size_t log_start, log_count;

    /* Of the thread alone. */
    double now;         /* when it began to handle a batch */
    uint32_t unix_time; /* the same */
    view_t *reading;    /* while it handles one; NULL: everything is for the event loop */
    bool has_news;      /* for the event loop */
} loop_t;

/* The sockets stay the caller's, and listeners must not block. NULL: no memory or no descriptor. UDP: -1 for none. */
loop_t *loop_create(int udp, const int *listeners, size_t listener_count);
void loop_destroy(loop_t *loop); /* stops it first */

/* The counters of connections stay mapped until the loop is destroyed. */
void loop_configure(loop_t *loop, const loop_settings_t *settings);
void loop_read_settings(loop_t *loop, loop_settings_t *settings);

/* Answer from a view; NULL: from none. */
void loop_use_view(loop_t *loop, view_t *view);

/* Start the thread; an error number or 0. `loop_stop` waits for the end of what it is answering. */
int loop_start(loop_t *loop);
void loop_stop(loop_t *loop);

/* Monotonic seconds at which the thread was last seen running. */
double loop_last_beat(const loop_t *loop);

/* Readable when there is something to take. */
int loop_event(const loop_t *loop);

/* Take the oldest lines for the access log; return how many. */
size_t loop_take_log(loop_t *loop, log_entry_t *entries, size_t limit);

void loop_read_counts(loop_t *loop, loop_counts_t *counts);

/* Start a new tally, and return the one until now: it stays valid until the next call. */
tally_t *loop_take_tally(loop_t *loop);

/* For the files of the thread */

double read_clock(clockid_t clock); /* in seconds */

/* Whether something has waited for the event loop for so long that it must be stuck. */
bool is_overdue(double since, double now);

/* Before a batch is handled, and after it. */
void loop_begin(loop_t *loop);
void loop_end(loop_t *loop);

/* Read from then on what is current now: for a request that has arrived after `loop_begin`. */
void loop_renew(loop_t *loop);

/* Answer a request, count it for statistics and set `started` for the log; or return false. */
bool loop_answer(loop_t *loop, bytes_t request, uint8_t out[MAX_RESPONSE], answer_t *answer, double *started,
                 bool logs);

void loop_log(loop_t *loop, bool is_tcp, const address_t *sender, const answer_t *answer, double started);

void count_code(uint64_t counts[COUNTED_CODES], uint32_t code);

#endif
