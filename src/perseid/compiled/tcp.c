#include "tcp.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ROUND_SIZE = 2 * BATCH, /* connections of a round: kept ones with something to read, and new ones */
    MAX_KEPT = 4096,        /* as many as there may be by default; the event loop keeps others */
    MAX_LISTENERS = 64,     /* as many as there are events of a round */
    FIRST_LISTENER = 1 << 16, /* the number of its event; kept connections have lower ones */
    LEVELS = 3,
    KEEP_AT = 28, /* the byte with the flag KC in a request, and its bit */
    KEEP_BIT = 0x02,
};

static const double LOOK_SECONDS = 1.0;  /* between two looks at the deadlines of connections */
static const double PAUSE_SECONDS = 0.1; /* without accepting, after the system ran out of descriptors */

/* A connection that waits for its next request. */
typedef struct {
    int descriptor; /* -1: none */
    uint32_t next_free;
    address_t peer;
    double deadline;
} kept_t;

struct tcp {
    int listeners[MAX_LISTENERS];
    size_t listener_count;

    /* With the lock of the queues. */
    connection_t queue[MAX_QUEUED];
    size_t queue_start, queue_count;
    double queue_since; /* when the event loop was last seen to empty it, or the first connection was added */

    /* Of the thread alone. */
    bool is_accepting;
    double pause_end, next_look;
    kept_t kept[MAX_KEPT];
    uint32_t first_free, used; /* `used`: numbers from there on were never used; MAX_KEPT: none is free */
    uint8_t received[MAX_RECEIVED];
    uint8_t response[MAX_RESPONSE];
};

/* Limits
 *
 * The rules are those of `Connections` in perseid.server.limits.budgets. Here is only a test that is certainly within
 * them; where it fails, Python decides. */

/* The counters of the networks of an address (`SharedConnections`); the first counter of a row is that of all. */
static size_t find_counters(const loop_settings_t *settings, const ip_t *ip, size_t counters[LEVELS])
{
    static const unsigned IPV6_BITS[LEVELS] = {64, 56, 48};
    const uint64_t secret = settings->connections.secret, size = settings->connections.size;
    uint64_t number = 0;

    for (int i = 0; i < (ip->is_ipv4 ? 4 : 8); i++)
        number = number << 8 | ip->bytes[i];
    if (ip->is_ipv4) {
        counters[0] = 1 + choose_bucket(secret, ((uint64_t)1 << 32 | number) ^ (uint64_t)32 << 56, size);
        return 1;
    }
    for (int i = 0; i < LEVELS; i++)
        counters[i] = 1 + choose_bucket(secret, number >> (64 - IPV6_BITS[i]) ^ (uint64_t)IPV6_BITS[i] << 56, size);
    return LEVELS;
}

static _Atomic uint32_t *find_counter(const loop_settings_t *settings, size_t row, size_t counter)
{
    return settings->connections.counters + row * (1 + settings->connections.size) + counter;
}

static uint64_t sum_counters(const loop_settings_t *settings, size_t counter)
{
    uint64_t sum = 0;

    for (size_t row = 0; row < settings->connections.rows; row++)
        sum += atomic_load_explicit(find_counter(settings, row, counter), memory_order_relaxed);
    return sum;
}

/* Whether an address may certainly have another connection. */
static bool has_room(const loop_settings_t *settings, const ip_t *ip)
{
    size_t counters[LEVELS], count;

    if (sum_counters(settings, 0) >= settings->connections.most)
        return false;
    if (is_exempt(&settings->traffic, ip))
        return true;
    count = find_counters(settings, ip, counters);
    for (size_t i = 0; i < count; i++)
        if (sum_counters(settings, counters[i]) >= settings->connections.most_of_network)
            return false;
    return true;
}

/* Count a connection of this thread, or with -1 its end. */
static void count_connection(const loop_settings_t *settings, const address_t *peer, int change)
{
    size_t counters[LEVELS], count, row = settings->connections.own_row;
    ip_t ip;

    if (!read_ip(&peer->any, &ip))
        return;
    count = find_counters(settings, &ip, counters);
    atomic_fetch_add(find_counter(settings, row, 0), (uint32_t)change);
    for (size_t i = 0; i < count; i++)
        atomic_fetch_add(find_counter(settings, row, counters[i]), (uint32_t)change);
}

/* What the event loop takes */

/* Leave a connection to the event loop; there is room. */
static void hand_over(loop_t *loop, int descriptor, const address_t *peer, reason_t reason, bytes_t data)
{
    tcp_t *tcp = loop->tcp;
    connection_t *connection;

    pthread_mutex_lock(&loop->queue_lock);
    if (!tcp->queue_count)
        tcp->queue_since = loop->now;
    connection = &tcp->queue[(tcp->queue_start + tcp->queue_count++) % MAX_QUEUED];
    connection->descriptor = descriptor;
    connection->peer = *peer;
    connection->reason = reason;
    connection->size = data.size;
    if (data.size)
        memcpy(connection->data, data.data, data.size);
    pthread_mutex_unlock(&loop->queue_lock);
    loop->has_news = true;
}

bool tcp_take_connection(loop_t *loop, connection_t *connection)
{
    tcp_t *tcp = loop->tcp;
    bool result;

    pthread_mutex_lock(&loop->queue_lock);
    result = tcp->queue_count > 0;
    if (result) {
        const connection_t *oldest = &tcp->queue[tcp->queue_start];
        memcpy(connection, oldest, offsetof(connection_t, data) + oldest->size);
        tcp->queue_start = (tcp->queue_start + 1) % MAX_QUEUED;
        tcp->queue_count--;
    }
    tcp->queue_since = read_clock(CLOCK_MONOTONIC);
    pthread_mutex_unlock(&loop->queue_lock);
    if (result && connection->reason != UNADMITTED)
        count_connection(&loop->settings, &connection->peer, -1);
    return result;
}

bool tcp_must_wait(const tcp_t *tcp, double now) { return tcp->queue_count && is_overdue(tcp->queue_since, now); }

bool tcp_has_room(loop_t *loop)
{
    pthread_mutex_lock(&loop->queue_lock);
    bool result = loop->tcp->queue_count + ROUND_SIZE <= MAX_QUEUED;
    pthread_mutex_unlock(&loop->queue_lock);
    return result;
}

/* Kept connections */

static void free_number(tcp_t *tcp, uint32_t number)
{
    tcp->kept[number].descriptor = -1;
    tcp->kept[number].next_free = tcp->first_free;
    tcp->first_free = number;
}

static void end_kept(loop_t *loop, uint32_t number)
{
    kept_t *kept = &loop->tcp->kept[number];

    /* Not by closing alone: a process that is being started has a copy, and epoll would go on to report it. */
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, kept->descriptor, NULL);
    close(kept->descriptor);
    count_connection(&loop->settings, &kept->peer, -1);
    free_number(loop->tcp, number);
}

/* Wait for the next request of a new connection; false if the event loop must. */
static bool keep(loop_t *loop, int descriptor, const address_t *peer)
{
    tcp_t *tcp = loop->tcp;
    uint32_t number = tcp->first_free < tcp->used ? tcp->first_free : tcp->used;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    int one = 1;

    if (number == MAX_KEPT || epoll_ctl(loop->epoll, EPOLL_CTL_ADD, descriptor, &event))
        return false;
    if (number == tcp->used)
        tcp->used++;
    else
        tcp->first_free = tcp->kept[number].next_free;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    tcp->kept[number].descriptor = descriptor;
    tcp->kept[number].peer = *peer;
    tcp->kept[number].deadline = loop->now + loop->settings.connections.idle_seconds;
    return true;
}

/* Handling connections */

typedef enum { CLOSE, KEEP, CONTINUE, LEAVE } step_t;

/* Answer what was received. LEAVE: it is for the event loop. CONTINUE: that must send the rest of the response. */
static step_t answer(loop_t *loop, int descriptor, const address_t *peer, bytes_t received, bytes_t *rest)
{
    uint8_t *out = loop->tcp->response;
    bool logs = loop->settings.tcp.logs;
    answer_t answer;
    double started;

    if (!loop->settings.tcp.resolves)
        return LEAVE;
    loop_renew(loop); /* its client may know of a change that was acknowledged since */
    if (!loop_answer(loop, received, out, &answer, &started, logs))
        return LEAVE;
    count_code(loop->counts.tcp, answer.code);
    if (logs)
        loop_log(loop, true, peer, &answer, started);
    ssize_t sent = send(descriptor, out, answer.size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN)
        return CLOSE;
    size_t done = sent < 0 ? 0 : (size_t)sent;
    *rest = (bytes_t){out + done, answer.size - done};
    if (rest->size)
        return CONTINUE;
    return received.data[KEEP_AT] & KEEP_BIT ? KEEP : CLOSE;
}

/* Why a connection whose request was answered is for the event loop. */
static reason_t answered_reason(const tcp_t *tcp) { return tcp->received[KEEP_AT] & KEEP_BIT ? ANSWERED_KEPT : ANSWERED; }

static void serve_new(loop_t *loop, int descriptor, const address_t *peer)
{
    tcp_t *tcp = loop->tcp;
    bytes_t rest = {NULL, 0};
    step_t step = LEAVE;
    ip_t ip;

    if (!read_ip(&peer->any, &ip) || !has_room(&loop->settings, &ip)) {
        hand_over(loop, descriptor, peer, UNADMITTED, rest);
        return;
    }
    ssize_t size = recv(descriptor, tcp->received, MAX_RECEIVED, MSG_DONTWAIT);
    if (size > 0) {
        rest = (bytes_t){tcp->received, (size_t)size};
        step = answer(loop, descriptor, peer, rest, &rest);
    } else if (!size || errno != EAGAIN) { /* else the time limit of the kernel has passed without data */
        step = CLOSE;
    }
    if (step == CLOSE) {
        close(descriptor);
        return;
    }
    count_connection(&loop->settings, peer, 1);
    if (step == LEAVE)
        hand_over(loop, descriptor, peer, UNANSWERED, rest);
    else if (step == CONTINUE || !keep(loop, descriptor, peer))
        hand_over(loop, descriptor, peer, answered_reason(tcp), rest);
}

static void accept_connections(loop_t *loop, int listener, size_t limit)
{
    for (size_t i = 0; i < limit; i++) {
        address_t peer;
        socklen_t size = sizeof peer;
        int descriptor = accept4(listener, &peer.any, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor >= 0) {
            serve_new(loop, descriptor, &peer);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            loop->counts.exhausted++;
            loop->tcp->pause_end = loop->now + PAUSE_SECONDS;
            return;
        } else if (errno == EAGAIN) {
            return;
        } /* else the client disconnected before it was accepted */
    }
}

static void serve_kept(loop_t *loop, uint32_t number)
{
    tcp_t *tcp = loop->tcp;
    kept_t *kept = &tcp->kept[number];
    bytes_t rest;
    step_t step = CLOSE;

    ssize_t size = recv(kept->descriptor, tcp->received, MAX_RECEIVED, MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN)
        return;
    if (size > 0) {
        rest = (bytes_t){tcp->received, (size_t)size};
        step = answer(loop, kept->descriptor, &kept->peer, rest, &rest);
    }
    if (step == KEEP) {
        kept->deadline = loop->now + loop->settings.connections.idle_seconds;
    } else if (step == CLOSE) {
        end_kept(loop, number);
    } else {
        epoll_ctl(loop->epoll, EPOLL_CTL_DEL, kept->descriptor, NULL);
        hand_over(loop, kept->descriptor, &kept->peer, step == LEAVE ? UNANSWERED : answered_reason(tcp), rest);
        free_number(tcp, number);
    }
}

void tcp_handle(loop_t *loop, const struct epoll_event *events, int count)
{
    tcp_t *tcp = loop->tcp;
    /* epoll reports listeners in the same order each time: a flood at one must not keep the others waiting. */
    size_t limit = tcp->listener_count ? BATCH / tcp->listener_count : 0;

    loop_begin(loop);
    for (int i = 0; i < count; i++) {
        uint32_t number = events[i].data.u32;
        if (number < FIRST_LISTENER)
            serve_kept(loop, number);
        else if (tcp->is_accepting)
            accept_connections(loop, tcp->listeners[number - FIRST_LISTENER], limit);
    }
    loop_end(loop);
}

/* Life */

/* With EPOLLEXCLUSIVE, one of the workers that share a listener is woken up, and not all of them. */
static void watch_listeners(loop_t *loop, bool is_accepting)
{
    tcp_t *tcp = loop->tcp;

    for (size_t i = 0; i < tcp->listener_count; i++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u32 = FIRST_LISTENER + (uint32_t)i};
        epoll_ctl(loop->epoll, is_accepting ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, tcp->listeners[i], &event);
    }
    tcp->is_accepting = is_accepting;
}

void tcp_maintain(loop_t *loop, double now)
{
    tcp_t *tcp = loop->tcp;

    if (tcp->is_accepting != (now >= tcp->pause_end))
        watch_listeners(loop, now >= tcp->pause_end);
    if (now < tcp->next_look)
        return;
    tcp->next_look = now + LOOK_SECONDS;
    pthread_mutex_lock(&loop->lock);
    for (uint32_t number = 0; number < tcp->used; number++)
        if (tcp->kept[number].descriptor >= 0 && tcp->kept[number].deadline < now) {
            loop->counts.idle++;
            end_kept(loop, number);
        }
    pthread_mutex_unlock(&loop->lock);
}

tcp_t *tcp_create(const int *listeners, size_t listener_count)
{
    tcp_t *tcp = listener_count > MAX_LISTENERS ? NULL : calloc(1, sizeof *tcp);

    if (tcp == NULL)
        return NULL;
    if (listener_count)
        memcpy(tcp->listeners, listeners, listener_count * sizeof *listeners);
    tcp->listener_count = listener_count;
    tcp->first_free = MAX_KEPT;
    return tcp;
}

void tcp_start(loop_t *loop) { watch_listeners(loop, true); }

void tcp_stop(loop_t *loop)
{
    tcp_t *tcp = loop->tcp;

    if (tcp->is_accepting)
        watch_listeners(loop, false);
    for (uint32_t number = 0; number < tcp->used; number++)
        if (tcp->kept[number].descriptor >= 0)
            end_kept(loop, number);
}

void tcp_destroy(loop_t *loop)
{
    tcp_t *tcp = loop->tcp;

    for (; tcp->queue_count; tcp->queue_count--, tcp->queue_start = (tcp->queue_start + 1) % MAX_QUEUED)
        close(tcp->queue[tcp->queue_start].descriptor);
    free(tcp);
}
