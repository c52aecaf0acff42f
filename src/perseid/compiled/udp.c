#include "udp.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCH = 64,                 /* datagrams of one system call */
    OUT_SLOTS = 2 * BATCH,      /* packets of one system call: room for the longest response beside a batch */
    WAIT_MILLISECONDS = 50,     /* longest sleep: the thread says that it is alive, and sees that it should stop */
    PAUSE_MICROSECONDS = 2000,  /* between two looks whether the event loop has emptied its queues */
    CONTROL_SIZE = CMSG_SPACE(INFO_SIZE),
};

static const char THREAD_NAME[] = "perseid-udp"; /* shown by `top -H` */
static const double MAX_QUEUED_SECONDS = 0.1; /* older: the event loop is stuck */

typedef union {
    struct cmsghdr header; /* for its alignment */
    uint8_t bytes[CONTROL_SIZE];
} control_t;

/* A packet that will be sent. */
typedef struct {
    uint8_t data[MAX_PACKET];
    uint32_t code;       /* of the response */
    uint32_t total;      /* bytes of all its packets */
    uint16_t following;  /* packets of it after this one */
} packet_t;

struct udp_loop {
    int socket;
    int event;
    uint16_t own_port;
    pthread_t thread;
    bool is_running;
    atomic_bool is_stopping;
    _Atomic double last_beat;

    pthread_mutex_t lock; /* of everything up to the queues; the thread holds it while it handles a batch */
    udp_settings_t settings;
    view_t *view;
    udp_counts_t counts;
    tally_t *tally, *taken_tally;
    unsigned refusals;

    pthread_mutex_t queue_lock; /* of the queues; never held for long, and never by who waits for the other lock */
    datagram_t queue[QUEUE_SIZE];
    size_t queue_start, queue_count;
    double queue_since; /* when the event loop was last seen to empty it, or the first datagram was added */
    log_entry_t log[LOG_SIZE];
    size_t log_start, log_count;

    /* Of the thread alone. */
    struct mmsghdr in[BATCH], out[OUT_SLOTS];
    struct iovec in_data[BATCH], out_data[OUT_SLOTS];
    address_t senders[BATCH];
    control_t in_control[BATCH], out_control[BATCH];
    uint8_t received[BATCH][MAX_READ];
    packet_t packets[OUT_SLOTS];
    unsigned out_count;
    bool has_news; /* for the event loop */
    bool is_full;  /* the last batch: there is probably more */
    bool has_view; /* while it handled the last batch */
};

static double seconds(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Sending */

static void count_sent(udp_loop_t *loop, const packet_t *packet)
{
    if (packet->following)
        return;
    loop->counts.responses[packet->code < COUNTED_CODES ? packet->code : 0]++;
    loop->counts.bytes_sent += packet->total;
}

/* Send everything. A response that cannot be sent is dropped with all its packets; the client will retry. */
static void flush_packets(udp_loop_t *loop)
{
    for (unsigned at = 0; at < loop->out_count;) {
        int sent = sendmmsg(loop->socket, loop->out + at, loop->out_count - at, MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        for (int i = 0; i < sent; i++)
            count_sent(loop, &loop->packets[at++]);
        if (sent <= 0) {
            loop->counts.unsent++;
            at += 1u + loop->packets[at].following;
        }
    }
    loop->out_count = 0;
}

/* The local address that received a datagram, so that the response leaves from it (IP_PKTINFO; RFC 3542, 6.2). */
static size_t write_control(const struct msghdr *received, control_t *control)
{
    const struct cmsghdr *header = CMSG_FIRSTHDR(received);

    if (header == NULL)
        return 0;
    if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_PKTINFO &&
        header->cmsg_len >= CMSG_LEN(sizeof(struct in6_pktinfo))) {
        struct in6_pktinfo info;
        memcpy(&info, CMSG_DATA(header), sizeof info);
        info.ipi6_ifindex = 0; /* left to the routing table */
        memset(control, 0, sizeof *control);
        control->header = (struct cmsghdr){CMSG_LEN(sizeof info), IPPROTO_IPV6, IPV6_PKTINFO};
        memcpy(CMSG_DATA(&control->header), &info, sizeof info);
        return CMSG_SPACE(sizeof info);
    }
    if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_PKTINFO &&
        header->cmsg_len >= CMSG_LEN(sizeof(struct in_pktinfo))) {
        struct in_pktinfo info, reply = {0};
        memcpy(&info, CMSG_DATA(header), sizeof info);
        reply.ipi_spec_dst = info.ipi_spec_dst; /* the other field is not local for a broadcast */
        memset(control, 0, sizeof *control);
        control->header = (struct cmsghdr){CMSG_LEN(sizeof reply), IPPROTO_IP, IP_PKTINFO};
        memcpy(CMSG_DATA(&control->header), &reply, sizeof reply);
        return CMSG_SPACE(sizeof reply);
    }
    return 0;
}

static packet_t *add_packet(udp_loop_t *loop, int request, size_t control_size, size_t size)
{
    unsigned slot = loop->out_count++;
    struct msghdr *header = &loop->out[slot].msg_hdr;

    header->msg_name = &loop->senders[request];
    header->msg_namelen = loop->in[request].msg_hdr.msg_namelen;
    header->msg_control = control_size ? &loop->out_control[request] : NULL;
    header->msg_controllen = control_size;
    loop->out_data[slot].iov_len = size;
    return &loop->packets[slot];
}

static size_t count_packets(size_t response) /* with envelope */
{
    return response <= MAX_PACKET ? 1 : (response - ENVELOPE_SIZE + PACKET_PAYLOAD - 1) / PACKET_PAYLOAD;
}

static size_t size_of_packets(size_t response)
{
    return response + (count_packets(response) - 1) * ENVELOPE_SIZE;
}

/* Queue a response in packets of at most 512 bytes, each with the envelope and its number. */
static void add_response(udp_loop_t *loop, int request, const uint8_t *response, size_t size, uint32_t code)
{
    enum { NUMBER_AT = 15 }; /* of a packet in its envelope; there are at most 16 */
    size_t packets = count_packets(size), payload = size - ENVELOPE_SIZE;
    size_t control_size = write_control(&loop->in[request].msg_hdr, &loop->out_control[request]);

    if (loop->out_count + packets > OUT_SLOTS)
        flush_packets(loop);
    for (size_t number = 0; number < packets; number++) {
        size_t start = number * PACKET_PAYLOAD;
        size_t length = payload - start < PACKET_PAYLOAD ? payload - start : PACKET_PAYLOAD;
        packet_t *packet = add_packet(loop, request, control_size, ENVELOPE_SIZE + length);
        memcpy(packet->data, response, ENVELOPE_SIZE);
        memcpy(packet->data + ENVELOPE_SIZE, response + ENVELOPE_SIZE + start, length);
        packet->data[NUMBER_AT] = (uint8_t)number;
        packet->code = code;
        packet->total = (uint32_t)size_of_packets(size);
        packet->following = (uint16_t)(packets - 1 - number);
    }
}

/* What the event loop takes */

static void wake_event_loop(udp_loop_t *loop)
{
    uint64_t one = 1;
    ssize_t written = write(loop->event, &one, sizeof one); /* full: it is awake */

    (void)written;
}

static void copy_datagram(const udp_loop_t *loop, int request, datagram_t *datagram)
{
    const struct mmsghdr *message = &loop->in[request];
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message->msg_hdr);

    datagram->sender = loop->senders[request];
    datagram->size = message->msg_len;
    memcpy(datagram->data, loop->received[request], message->msg_len);
    datagram->info_size = header == NULL ? 0 : header->cmsg_len - CMSG_LEN(0);
    if (datagram->info_size > INFO_SIZE)
        datagram->info_size = 0;
    if (datagram->info_size)
        memcpy(datagram->info, CMSG_DATA(header), datagram->info_size);
}

static void hand_over(udp_loop_t *loop, int request, double now)
{
    pthread_mutex_lock(&loop->queue_lock);
    if (loop->queue_count == QUEUE_SIZE) {
        loop->counts.overflows++;
    } else {
        if (!loop->queue_count)
            loop->queue_since = now;
        copy_datagram(loop, request, &loop->queue[(loop->queue_start + loop->queue_count++) % QUEUE_SIZE]);
        loop->has_news = true;
    }
    pthread_mutex_unlock(&loop->queue_lock);
}

static void log_answer(udp_loop_t *loop, int request, const answer_t *answer, double started)
{
    log_entry_t *entry;

    pthread_mutex_lock(&loop->queue_lock);
    entry = &loop->log[(loop->log_start + loop->log_count++) % LOG_SIZE]; /* `must_wait` has seen that there is room */
    entry->sender = loop->senders[request];
    entry->code = answer->code;
    entry->microseconds = (uint32_t)(int64_t)((seconds(CLOCK_MONOTONIC) - started) * 1e6);
    entry->name_size = answer->requested.size;
    memcpy(entry->name, answer->requested.data, answer->requested.size);
    loop->has_news = true;
    pthread_mutex_unlock(&loop->queue_lock);
}

/* Handling a batch */

static void count_answer(udp_loop_t *loop, const answer_t *answer)
{
    if (answer->code == CODE_SUCCESS || answer->code == CODE_NO_VALUES) {
        tally_count(loop->tally, TALLY_FOUND, answer->prefix);
    } else if (answer->code == CODE_NOT_FOUND) {
        tally_count(loop->tally, TALLY_UNKNOWN, answer->prefix);
        tally_count(loop->tally, TALLY_MISSING, answer->requested);
    }
}

/* A short response to every other request over the limit: its client uses TCP, where addresses are real. */
static void refuse(udp_loop_t *loop, int request, bytes_t datagram, uint32_t unix_time)
{
    const udp_settings_t *settings = &loop->settings;
    uint8_t out[MAX_PACKET];
    size_t size;

    loop->counts.rate_limited++;
    if (!(++loop->refusals & 1))
        return;
    size = refuse_request(datagram, (bytes_t){settings->refusal_text, settings->refusal_text_size}, unix_time, out);
    if (size)
        add_response(loop, request, out, size, CODE_ERROR);
}

static in_port_t sender_port(const address_t *sender)
{
    return ntohs(sender->any.sa_family == AF_INET6 ? sender->ipv6.sin6_port : sender->ipv4.sin_port);
}

/* Answer a request, or return false. */
static bool answer_request(udp_loop_t *loop, int request, view_t *view, double now, uint32_t unix_time)
{
    const udp_settings_t *settings = &loop->settings;
    bytes_t datagram = {loop->received[request], loop->in[request].msg_len};
    double started = settings->logs ? seconds(CLOCK_MONOTONIC) : 0;
    uint8_t out[MAX_RESPONSE];
    answer_t answer;
    ip_t ip;

    /* From our own port the sender is perhaps forged. */
    if (view == NULL || sender_port(&loop->senders[request]) == loop->own_port ||
        !read_ip(&loop->senders[request].any, &ip) ||
        !resolve_request(&settings->resolution, view_lookup, view, datagram, unix_time, out, &answer))
        return false;
    count_answer(loop, &answer);
    double cost = (double)size_of_packets(answer.size) - (double)datagram.size;
    if (traffic_allows(&settings->traffic, &ip, cost, now))
        add_response(loop, request, out, answer.size, answer.code);
    else
        refuse(loop, request, datagram, unix_time);
    if (settings->logs)
        log_answer(loop, request, &answer, started);
    return true;
}

static void handle_batch(udp_loop_t *loop, int count)
{
    pthread_mutex_lock(&loop->lock);
    double now = seconds(CLOCK_MONOTONIC);
    uint32_t unix_time = (uint32_t)(int64_t)seconds(CLOCK_REALTIME);
    view_t *view = loop->settings.resolves && loop->view != NULL && view_begin(loop->view) ? loop->view : NULL;

    loop->has_view = view != NULL;
    for (int i = 0; i < count; i++)
        if (!answer_request(loop, i, view, now, unix_time))
            hand_over(loop, i, now);
    if (view != NULL)
        view_end(view);
    flush_packets(loop);
    pthread_mutex_unlock(&loop->lock);
    if (loop->has_news)
        wake_event_loop(loop);
    loop->has_news = false;
}

/* The thread */

/* Whether the event loop must first empty its queues. If everything is for it, the buffer of the socket is the better
 * place to wait; otherwise what is for it must not delay public resolution, and is dropped if it is too much. */
static bool must_wait(udp_loop_t *loop, double now)
{
    pthread_mutex_lock(&loop->queue_lock);
    bool result = (loop->queue_count && now - loop->queue_since > MAX_QUEUED_SECONDS) ||
                  (loop->queue_count > QUEUE_SIZE - BATCH && !loop->has_view) || loop->log_count > LOG_SIZE - BATCH;
    pthread_mutex_unlock(&loop->queue_lock);
    return result;
}

static void prepare_batch(udp_loop_t *loop)
{
    for (int i = 0; i < BATCH; i++) {
        loop->in[i].msg_hdr.msg_namelen = sizeof loop->senders[i];
        loop->in[i].msg_hdr.msg_controllen = sizeof loop->in_control[i];
    }
}

/* Wait for datagrams, then read them: who waits inside of a read can take one with him when he is killed. */
static int receive_batch(udp_loop_t *loop)
{
    struct pollfd ready = {.fd = loop->socket, .events = POLLIN};

    if (!loop->is_full && poll(&ready, 1, WAIT_MILLISECONDS) <= 0)
        return 0;
    prepare_batch(loop);
    int count = recvmmsg(loop->socket, loop->in, BATCH, MSG_DONTWAIT, NULL); /* or an error of an earlier response */
    loop->is_full = count == BATCH;
    return count;
}

static void *run(void *argument)
{
    udp_loop_t *loop = argument;

    while (!atomic_load(&loop->is_stopping)) {
        double now = seconds(CLOCK_MONOTONIC);
        atomic_store(&loop->last_beat, now);
        if (must_wait(loop, now)) {
            usleep(PAUSE_MICROSECONDS);
            continue;
        }
        int count = receive_batch(loop);
        if (count > 0)
            handle_batch(loop, count);
    }
    return NULL;
}

/* Life */

static void connect_buffers(udp_loop_t *loop)
{
    for (int i = 0; i < BATCH; i++) {
        loop->in_data[i] = (struct iovec){loop->received[i], MAX_READ};
        loop->in[i].msg_hdr.msg_name = &loop->senders[i];
        loop->in[i].msg_hdr.msg_iov = &loop->in_data[i];
        loop->in[i].msg_hdr.msg_iovlen = 1;
        loop->in[i].msg_hdr.msg_control = &loop->in_control[i];
    }
    for (int i = 0; i < OUT_SLOTS; i++) {
        loop->out_data[i].iov_base = loop->packets[i].data;
        loop->out[i].msg_hdr.msg_iov = &loop->out_data[i];
        loop->out[i].msg_hdr.msg_iovlen = 1;
    }
}

udp_loop_t *udp_create(int socket)
{
    udp_loop_t *loop = calloc(1, sizeof *loop);
    address_t own;
    socklen_t size = sizeof own;

    if (loop == NULL)
        return NULL;
    loop->socket = socket;
    loop->tally = calloc(1, sizeof *loop->tally);
    loop->taken_tally = calloc(1, sizeof *loop->taken_tally);
    loop->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&loop->lock, NULL);
    pthread_mutex_init(&loop->queue_lock, NULL);
    connect_buffers(loop);
    if (loop->tally == NULL || loop->taken_tally == NULL || loop->event < 0 || getsockname(socket, &own.any, &size)) {
        udp_destroy(loop);
        return NULL;
    }
    loop->own_port = sender_port(&own);
    return loop;
}

void udp_destroy(udp_loop_t *loop)
{
    udp_stop(loop);
    udp_use_view(loop, NULL);
    if (loop->event >= 0)
        close(loop->event);
    pthread_mutex_destroy(&loop->lock);
    pthread_mutex_destroy(&loop->queue_lock);
    free(loop->tally);
    free(loop->taken_tally);
    free(loop);
}

void udp_configure(udp_loop_t *loop, const udp_settings_t *settings)
{
    pthread_mutex_lock(&loop->lock);
    loop->settings = *settings;
    if (!settings->logs) { /* nobody takes what is left */
        pthread_mutex_lock(&loop->queue_lock);
        loop->log_count = 0;
        pthread_mutex_unlock(&loop->queue_lock);
    }
    pthread_mutex_unlock(&loop->lock);
}

void udp_use_view(udp_loop_t *loop, view_t *view)
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

int udp_start(udp_loop_t *loop)
{
    sigset_t all, before;
    int error;

    if (loop->is_running)
        return 0;
    atomic_store(&loop->is_stopping, false);
    atomic_store(&loop->last_beat, seconds(CLOCK_MONOTONIC));
    sigfillset(&all); /* signals are for Python's main thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&loop->thread, NULL, run, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        pthread_setname_np(loop->thread, THREAD_NAME);
    loop->is_running = !error;
    return error;
}

void udp_stop(udp_loop_t *loop)
{
    if (!loop->is_running)
        return;
    atomic_store(&loop->is_stopping, true);
    pthread_join(loop->thread, NULL);
    loop->is_running = false;
}

double udp_last_beat(const udp_loop_t *loop) { return atomic_load(&loop->last_beat); }

int udp_event(const udp_loop_t *loop) { return loop->event; }

/* What Python takes */

size_t udp_take_datagrams(udp_loop_t *loop, datagram_t *datagrams, size_t limit)
{
    size_t count = 0;

    pthread_mutex_lock(&loop->queue_lock);
    for (; count < limit && loop->queue_count; count++, loop->queue_count--) {
        datagrams[count] = loop->queue[loop->queue_start];
        loop->queue_start = (loop->queue_start + 1) % QUEUE_SIZE;
    }
    loop->queue_since = seconds(CLOCK_MONOTONIC);
    pthread_mutex_unlock(&loop->queue_lock);
    return count;
}

size_t udp_take_log(udp_loop_t *loop, log_entry_t *entries, size_t limit)
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

void udp_read_counts(udp_loop_t *loop, udp_counts_t *counts)
{
    pthread_mutex_lock(&loop->lock);
    *counts = loop->counts;
    pthread_mutex_unlock(&loop->lock);
}

tally_t *udp_take_tally(udp_loop_t *loop)
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
