#include "loop.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "tcp.h"
#include "udp.h"

enum {
    WAIT_MILLISECONDS = 50,    /* longest sleep: the thread says that it is alive, and sees that it should stop */
    PAUSE_MILLISECONDS = 2,    /* between two looks whether the event loop has emptied its queues */
    MOST_LOGGED = 3 * BATCH,   /* lines of one round: datagrams, new connections and kept ones */
};

static const char THREAD_NAME[] = "perseid-resolve"; /* shown by `top -H` */
static const double MAX_QUEUED_SECONDS = 0.1; /* older: the event loop is stuck */

double read_clock(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool is_overdue(double since, double now) { return now - since > MAX_QUEUED_SECONDS; }

void count_code(uint64_t counts[COUNTED_CODES], uint32_t code) { counts[code < COUNTED_CODES ? code : 0]++; }

/* Handling a batch */

void loop_begin(loop_t *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->now = read_clock(CLOCK_MONOTONIC);
    loop->unix_time = (uint32_t)(int64_t)read_clock(CLOCK_REALTIME);
    loop->reading = loop->view != NULL && view_begin(loop->view) ? loop->view : NULL;
}

void loop_renew(loop_t *loop)
{
    if (loop->reading != NULL)
        view_end(loop->reading);
    loop->reading = loop->view != NULL && view_begin(loop->view) ? loop->view : NULL;
}

void loop_end(loop_t *loop)
{
    if (loop->reading != NULL)
        view_end(loop->reading);
    pthread_mutex_unlock(&loop->lock);
    if (loop->has_news) {
        uint64_t one = 1;
        ssize_t written = write(loop->event, &one, sizeof one); /* full: it is awake */
        (void)written;
    }
    loop->has_news = false;
}

static void count_answer(loop_t *loop, const answer_t *answer)
{
    if (answer->code == CODE_SUCCESS || answer->code == CODE_NO_VALUES) {
        tally_count(loop->tally, TALLY_FOUND, answer->prefix);
    } else if (answer->code == CODE_NOT_FOUND) {
        tally_count(loop->tally, TALLY_UNKNOWN, answer->prefix);
        tally_count(loop->tally, TALLY_MISSING, answer->requested);
    }
}

bool loop_answer(loop_t *loop, bytes_t request, uint8_t out[MAX_RESPONSE], answer_t *answer, double *started,
                 bool logs)
{
    *started = logs ? read_clock(CLOCK_MONOTONIC) : 0;
    if (loop->reading == NULL || !resolve_request(&loop->settings.resolution, view_lookup, loop->reading, request,
                                                  loop->unix_time, out, answer))
        return false;
    count_answer(loop, answer);
    return true;
}

void loop_log(loop_t *loop, bool is_tcp, const address_t *sender, const answer_t *answer, double started)
{
    log_entry_t *entry;

    pthread_mutex_lock(&loop->queue_lock);
    entry = &loop->log[(loop->log_start + loop->log_count++) % LOG_SIZE]; /* `must_wait` has seen that there is room */
    entry->sender = *sender;
    entry->is_tcp = is_tcp;
    entry->code = answer->code;
    entry->microseconds = (uint32_t)(int64_t)((read_clock(CLOCK_MONOTONIC) - started) * 1e6);
    entry->name_size = answer->requested.size;
    memcpy(entry->name, answer->requested.data, answer->requested.size);
    loop->has_news = true;
    pthread_mutex_unlock(&loop->queue_lock);
}

/* The thread */

/* Whether the event loop must first empty its queues. */
static bool must_wait(loop_t *loop, double now)
{
    pthread_mutex_lock(&loop->queue_lock);
    bool result = loop->log_count > LOG_SIZE - MOST_LOGGED || (loop->udp != NULL && udp_must_wait(loop->udp, now)) ||
                  tcp_must_wait(loop->tcp, now);
    pthread_mutex_unlock(&loop->queue_lock);
    return result;
}

/* Wait until there is something to read, except connections if the event loop must first take some. */
static int wait_for_events(loop_t *loop, struct epoll_event events[BATCH])
{
    if (tcp_has_room(loop))
        return epoll_wait(loop->epoll, events, BATCH, udp_is_full(loop->udp) ? 0 : WAIT_MILLISECONDS);
    if (loop->udp == NULL) {
        poll(NULL, 0, PAUSE_MILLISECONDS);
        return 0;
    }
    struct pollfd ready = {.fd = udp_socket(loop->udp), .events = POLLIN};
    events[0].data.u32 = UDP_EVENT;
    return poll(&ready, 1, PAUSE_MILLISECONDS);
}

static void *run(void *argument)
{
    loop_t *loop = argument;
    struct epoll_event events[BATCH];

    while (!atomic_load(&loop->is_stopping)) {
        double now = read_clock(CLOCK_MONOTONIC);
        atomic_store(&loop->last_beat, now);
        if (must_wait(loop, now)) {
            poll(NULL, 0, PAUSE_MILLISECONDS);
            continue;
        }
        tcp_maintain(loop, now);
        int count = wait_for_events(loop, events), connections = 0;
        bool has_datagrams = udp_is_full(loop->udp);
        for (int i = 0; i < count; i++) {
            if (events[i].data.u32 == UDP_EVENT)
                has_datagrams = true;
            else
                events[connections++] = events[i];
        }
        if (has_datagrams)
            udp_handle_batch(loop);
        if (connections)
            tcp_handle(loop, events, connections);
    }
    return NULL;
}

/* Life */

static bool watch_udp(loop_t *loop)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = UDP_EVENT};

    return loop->udp != NULL && !epoll_ctl(loop->epoll, EPOLL_CTL_ADD, udp_socket(loop->udp), &event);
}

loop_t *loop_create(int udp, const int *listeners, size_t listener_count)
{
    loop_t *loop = calloc(1, sizeof *loop);

    if (loop == NULL)
        return NULL;
    pthread_mutex_init(&loop->lock, NULL);
    pthread_mutex_init(&loop->queue_lock, NULL);
    loop->tally = calloc(1, sizeof *loop->tally);
    loop->taken_tally = calloc(1, sizeof *loop->taken_tally);
    loop->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->tcp = tcp_create(listeners, listener_count);
    loop->udp = udp < 0 ? NULL : udp_create(udp);
    if (loop->tally == NULL || loop->taken_tally == NULL || loop->event < 0 || loop->epoll < 0 || loop->tcp == NULL ||
        (udp >= 0 && !watch_udp(loop))) {
        loop_destroy(loop);
        return NULL;
    }
    return loop;
}

void loop_destroy(loop_t *loop)
{
    loop_stop(loop);
    loop_use_view(loop, NULL);
    if (loop->tcp != NULL)
        tcp_destroy(loop);
    free(loop->udp);
    if (loop->event >= 0)
        close(loop->event);
    if (loop->epoll >= 0)
        close(loop->epoll);
    pthread_mutex_destroy(&loop->lock);
    pthread_mutex_destroy(&loop->queue_lock);
    free(loop->tally);
    free(loop->taken_tally);
    free(loop);
}

void loop_configure(loop_t *loop, const loop_settings_t *settings)
{
    pthread_mutex_lock(&loop->lock);
    loop->settings = *settings;
    if (!settings->udp.logs && !settings->tcp.logs) { /* nobody takes what is left */
        pthread_mutex_lock(&loop->queue_lock);
        loop->log_count = 0;
        pthread_mutex_unlock(&loop->queue_lock);
    }
    pthread_mutex_unlock(&loop->lock);
}

void loop_read_settings(loop_t *loop, loop_settings_t *settings)
{
    pthread_mutex_lock(&loop->lock);
    *settings = loop->settings;
    pthread_mutex_unlock(&loop->lock);
}

void loop_use_view(loop_t *loop, view_t *view)
{
    view_t *before;

    pthread_mutex_lock(&loop->lock);
    before = loop->view;
    if (view != NULL)
        view_retain(view);
    loop->view = view;
    pthread_mutex_unlock(&loop->lock);
    if (before != NULL)
        view_release(before);
}

int loop_start(loop_t *loop)
{
    sigset_t all, before;
    int error;

    if (loop->is_running)
        return 0;
    atomic_store(&loop->is_stopping, false);
    atomic_store(&loop->last_beat, read_clock(CLOCK_MONOTONIC));
    tcp_start(loop);
    sigfillset(&all); /* signals are for Python's main thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&loop->thread, NULL, run, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_setname_np(loop->thread, THREAD_NAME);
    loop->is_running = !error;
    return error;
}

void loop_stop(loop_t *loop)
{
    if (!loop->is_running)
        return;
    atomic_store(&loop->is_stopping, true);
    pthread_join(loop->thread, NULL);
    loop->is_running = false;
    tcp_stop(loop);
}

double loop_last_beat(const loop_t *loop) { return atomic_load(&loop->last_beat); }

int loop_event(const loop_t *loop) { return loop->event; }

/* What Python takes */

size_t loop_take_log(loop_t *loop, log_entry_t *entries, size_t limit)
{
    size_t count = 0;

    pthread_mutex_lock(&loop->queue_lock);
    for (; count < limit && loop->log_count; count++, loop->log_count--) {
        entries[count] = loop->log[loop->log_start];
        loop->log_start = (loop->log_start + 1) % LOG_SIZE;
    }
    pthread_mutex_unlock(&loop->queue_lock);
    return count;
}

void loop_read_counts(loop_t *loop, loop_counts_t *counts)
{
    pthread_mutex_lock(&loop->lock);
    *counts = loop->counts;
    pthread_mutex_unlock(&loop->lock);
}

tally_t *loop_take_tally(loop_t *loop)
{
    tally_t *taken;

    pthread_mutex_lock(&loop->lock);
    taken = loop->tally;
    memset(loop->taken_tally, 0, sizeof *loop->taken_tally);
    loop->tally = loop->taken_tally;
    loop->taken_tally = taken;
    pthread_mutex_unlock(&loop->lock);
    return taken;
}
