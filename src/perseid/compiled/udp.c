#include "udp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    OUT_SLOTS = 2 * BATCH, /* packets of one system call: room for the longest response beside a batch */
    QUEUE_SIZE = 256,      /* datagrams for the event loop, which takes fewer at a time */
    CONTROL_SIZE = CMSG_SPACE(INFO_SIZE),
};

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

struct udp {
    int socket;
    uint16_t own_port;

    /* With the lock of the queues. */
    datagram_t queue[QUEUE_SIZE];
    size_t queue_start, queue_count;
    double queue_since; /* when the event loop was last seen to empty it, or the first datagram was added */

    /* Of the thread alone. */
    bool has_view; /* while it handled the last batch */
    struct mmsghdr in[BATCH], out[OUT_SLOTS];
    struct iovec in_data[BATCH], out_data[OUT_SLOTS];
    address_t senders[BATCH];
    control_t in_control[BATCH], out_control[BATCH];
    uint8_t received[BATCH][MAX_READ];
    packet_t packets[OUT_SLOTS];
    unsigned out_count, refusals;
    bool is_full;
};

/* Sending */

static void count_sent(loop_t *loop, const packet_t *packet)
{
    if (packet->following)
        return;
    count_code(loop->counts.udp, packet->code);
    loop->counts.bytes_sent += packet->total;
}

/* Send everything. A response that cannot be sent is dropped with all its packets; the client will retry. */
static void flush_packets(loop_t *loop)
{
    udp_t *udp = loop->udp;

    for (unsigned at = 0; at < udp->out_count;) {
        int sent = sendmmsg(udp->socket, udp->out + at, udp->out_count - at, MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        for (int i = 0; i < sent; i++)
            count_sent(loop, &udp->packets[at++]);
        if (sent <= 0) {
            loop->counts.unsent++;
            at += 1u + udp->packets[at].following;
        }
    }
    udp->out_count = 0;
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

static packet_t *add_packet(udp_t *udp, int request, size_t control_size, size_t size)
{
    unsigned slot = udp->out_count++;
    struct msghdr *header = &udp->out[slot].msg_hdr;

    header->msg_name = &udp->senders[request];
    header->msg_namelen = udp->in[request].msg_hdr.msg_namelen;
    header->msg_control = control_size ? &udp->out_control[request] : NULL;
    header->msg_controllen = control_size;
    udp->out_data[slot].iov_len = size;
    return &udp->packets[slot];
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
static void add_response(loop_t *loop, int request, const uint8_t *response, size_t size, uint32_t code)
{
    enum { NUMBER_AT = 15 }; /* of a packet in its envelope; there are at most 16 */
    udp_t *udp = loop->udp;
    size_t packets = count_packets(size), payload = size - ENVELOPE_SIZE;
    size_t control_size = write_control(&udp->in[request].msg_hdr, &udp->out_control[request]);

    if (udp->out_count + packets > OUT_SLOTS)
        flush_packets(loop);
    for (size_t number = 0; number < packets; number++) {
        size_t start = number * PACKET_PAYLOAD;
        size_t length = payload - start < PACKET_PAYLOAD ? payload - start : PACKET_PAYLOAD;
        packet_t *packet = add_packet(udp, request, control_size, ENVELOPE_SIZE + length);
        memcpy(packet->data, response, ENVELOPE_SIZE);
        memcpy(packet->data + ENVELOPE_SIZE, response + ENVELOPE_SIZE + start, length);
        packet->data[NUMBER_AT] = (uint8_t)number;
        packet->code = code;
        packet->total = (uint32_t)size_of_packets(size);
        packet->following = (uint16_t)(packets - 1 - number);
    }
}

/* What the event loop takes */

static void copy_datagram(const udp_t *udp, int request, datagram_t *datagram)
{
    const struct mmsghdr *message = &udp->in[request];
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message->msg_hdr);

    datagram->sender = udp->senders[request];
    datagram->size = message->msg_len;
    memcpy(datagram->data, udp->received[request], message->msg_len);
    datagram->info_size = header == NULL ? 0 : header->cmsg_len - CMSG_LEN(0);
    if (datagram->info_size > INFO_SIZE)
        datagram->info_size = 0;
    if (datagram->info_size)
        memcpy(datagram->info, CMSG_DATA(header), datagram->info_size);
}

static void hand_over(loop_t *loop, int request)
{
    udp_t *udp = loop->udp;

    pthread_mutex_lock(&loop->queue_lock);
    if (udp->queue_count == QUEUE_SIZE) {
        loop->counts.overflows++;
    } else {
        if (!udp->queue_count)
            udp->queue_since = loop->now;
        copy_datagram(udp, request, &udp->queue[(udp->queue_start + udp->queue_count++) % QUEUE_SIZE]);
        loop->has_news = true;
    }
    pthread_mutex_unlock(&loop->queue_lock);
}

size_t udp_take_datagrams(loop_t *loop, datagram_t *datagrams, size_t limit)
{
    udp_t *udp = loop->udp;
    size_t count = 0;

    if (udp == NULL)
        return 0;
    pthread_mutex_lock(&loop->queue_lock);
    for (; count < limit && udp->queue_count; count++, udp->queue_count--) {
        datagrams[count] = udp->queue[udp->queue_start];
        udp->queue_start = (udp->queue_start + 1) % QUEUE_SIZE;
    }
    udp->queue_since = read_clock(CLOCK_MONOTONIC);
    pthread_mutex_unlock(&loop->queue_lock);
    return count;
}

/* If everything is for the event loop, the buffer of the socket is the better place to wait; otherwise what is for it
 * must not delay public resolution, and is dropped if it is too much. */
bool udp_must_wait(const udp_t *udp, double now)
{
    return (udp->queue_count && is_overdue(udp->queue_since, now)) ||
           (udp->queue_count > QUEUE_SIZE - BATCH && !udp->has_view);
}

/* Handling a batch */

/* A short response to every other request over the limit: its client uses TCP, where addresses are real. */
static void refuse(loop_t *loop, int request, bytes_t datagram)
{
    const loop_settings_t *settings = &loop->settings;
    bytes_t text = {settings->refusal_text, settings->refusal_text_size};
    uint8_t out[MAX_PACKET];
    size_t size;

    loop->counts.rate_limited++;
    if (!(++loop->udp->refusals & 1))
        return;
    size = refuse_request(datagram, text, loop->unix_time, out);
    if (size)
        add_response(loop, request, out, size, CODE_ERROR);
}

static in_port_t sender_port(const address_t *sender)
{
    return ntohs(sender->any.sa_family == AF_INET6 ? sender->ipv6.sin6_port : sender->ipv4.sin_port);
}

/* Answer a request, or return false. */
static bool answer_request(loop_t *loop, int request)
{
    const loop_settings_t *settings = &loop->settings;
    udp_t *udp = loop->udp;
    const address_t *sender = &udp->senders[request];
    bytes_t datagram = {udp->received[request], udp->in[request].msg_len};
    uint8_t out[MAX_RESPONSE];
    answer_t answer;
    double started;
    ip_t ip;

    /* From our own port the sender is perhaps forged. */
    if (!settings->udp.resolves || sender_port(sender) == udp->own_port || !read_ip(&sender->any, &ip) ||
        !loop_answer(loop, datagram, out, &answer, &started, settings->udp.logs))
        return false;
    double cost = (double)size_of_packets(answer.size) - (double)datagram.size;
    if (traffic_allows(&settings->traffic, &ip, cost, loop->now))
        add_response(loop, request, out, answer.size, answer.code);
    else
        refuse(loop, request, datagram);
    if (settings->udp.logs)
        loop_log(loop, false, sender, &answer, started);
    return true;
}

static void prepare_batch(udp_t *udp)
{
    for (int i = 0; i < BATCH; i++) {
        udp->in[i].msg_hdr.msg_namelen = sizeof udp->senders[i];
        udp->in[i].msg_hdr.msg_controllen = sizeof udp->in_control[i];
    }
}

void udp_handle_batch(loop_t *loop)
{
    udp_t *udp = loop->udp;

    prepare_batch(udp);
    /* Never wait here: who is killed while he waits inside of a read can take a datagram with him. */
    int count = recvmmsg(udp->socket, udp->in, BATCH, MSG_DONTWAIT, NULL); /* or an error of an earlier response */
    udp->is_full = count == BATCH;
    if (count <= 0)
        return;
    loop_begin(loop);
    udp->has_view = loop->reading != NULL && loop->settings.udp.resolves;
    for (int i = 0; i < count; i++)
        if (!answer_request(loop, i))
            hand_over(loop, i);
    flush_packets(loop);
    loop_end(loop);
}

/* Life */

static void connect_buffers(udp_t *udp)
{
    for (int i = 0; i < BATCH; i++) {
        udp->in_data[i] = (struct iovec){udp->received[i], MAX_READ};
        udp->in[i].msg_hdr.msg_name = &udp->senders[i];
        udp->in[i].msg_hdr.msg_iov = &udp->in_data[i];
        udp->in[i].msg_hdr.msg_iovlen = 1;
        udp->in[i].msg_hdr.msg_control = &udp->in_control[i];
    }
    for (int i = 0; i < OUT_SLOTS; i++) {
        udp->out_data[i].iov_base = udp->packets[i].data;
        udp->out[i].msg_hdr.msg_iov = &udp->out_data[i];
        udp->out[i].msg_hdr.msg_iovlen = 1;
    }
}

udp_t *udp_create(int socket)
{
    udp_t *udp = calloc(1, sizeof *udp);
    address_t own;
    socklen_t size = sizeof own;

    if (udp == NULL || getsockname(socket, &own.any, &size)) {
        free(udp);
        return NULL;
    }
    udp->socket = socket;
    udp->own_port = sender_port(&own);
    connect_buffers(udp);
    return udp;
}

int udp_socket(const udp_t *udp) { return udp->socket; }

bool udp_is_full(const udp_t *udp) { return udp != NULL && udp->is_full; }
