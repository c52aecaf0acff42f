/*
 * cecho - the least that a server can cost: receives requests and sends them back.
 *
 *   build:  cc -O2 -o cecho cecho.c        use:  ./cecho BYTES   or   ./cecho tcp
 *
 * Binds 127.0.0.1 at a free port, prints the port, and serves until it is killed. Over UDP it receives batches of
 * datagrams and sends each back with BYTES bytes. Over TCP it closes a connection after the first request, unless that
 * asks to keep it. A request sent back with its length unchanged is what hdlbench -R 0 accepts.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 64
#define LONGEST 2048
#define FLAGS 28
#define KEEP 0x02

static void serve_udp(int udp, int size) {
    static char bytes[BATCH][LONGEST];
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH];
    struct sockaddr_in senders[BATCH];

    memset(messages, 0, sizeof messages);
    for (int i = 0; i < BATCH; i++) {
        parts[i].iov_base = bytes[i];
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
        messages[i].msg_hdr.msg_name = &senders[i];
    }
    for (;;) {
        for (int i = 0; i < BATCH; i++) {
            parts[i].iov_len = LONGEST;
            messages[i].msg_hdr.msg_namelen = sizeof senders[i];
        }
        int received = recvmmsg(udp, messages, BATCH, MSG_WAITFORONE, NULL);
        for (int i = 0; i < received; i++)
            parts[i].iov_len = size;
        for (int sent = 0; sent < received;) {
            int more = sendmmsg(udp, messages + sent, received - sent, 0);
            if (more <= 0)
                break;
            sent += more;
        }
    }
}

static void serve_tcp(int listener) {
    static char bytes[LONGEST];
    struct epoll_event events[BATCH], event = {.events = EPOLLIN, .data.fd = listener};
    int poll = epoll_create1(0), one = 1;

    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(poll, events, BATCH, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                if ((event.data.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(event.data.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event);
                }
                continue;
            }
            ssize_t length = recv(fd, bytes, LONGEST, 0);
            if (length <= FLAGS || send(fd, bytes, length, MSG_NOSIGNAL) != length || !(bytes[FLAGS] & KEEP))
                close(fd);
        }
    }
}

int main(int count, char **arguments) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t own_size = sizeof own;
    int tcp = count > 1 && !strcmp(arguments[1], "tcp");
    int size = count > 1 ? atoi(arguments[1]) : 0;
    int server = socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0);

    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if ((!tcp && (size < 1 || size > LONGEST)) || bind(server, (struct sockaddr *)&own, sizeof own)
        || (tcp && listen(server, 1024)) || getsockname(server, (struct sockaddr *)&own, &own_size)) {
        fprintf(stderr, "use: cecho BYTES (1 to %d) or cecho tcp\n", LONGEST);
        return 1;
    }
    printf("%d\n", ntohs(own.sin_port));
    fflush(stdout);
    if (tcp)
        serve_tcp(server);
    serve_udp(server, size);
}
