/*
 * cecho - the least that a UDP server can cost: receives batches of datagrams and sends each back, padded.
 *
 *   build:  cc -O2 -o cecho cecho.c        use:  ./cecho BYTES
 *
 * Binds 127.0.0.1 at a free port, prints the port, and serves until it is killed. A request sent back with its
 * length unchanged is what hdlbench -R 0 accepts.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BATCH 64
#define LONGEST 2048

int main(int count, char **arguments) {
    static char bytes[BATCH][LONGEST];
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH];
    struct sockaddr_in senders[BATCH], own = {.sin_family = AF_INET};
    socklen_t own_size = sizeof own;
    int size = count > 1 ? atoi(arguments[1]) : 0;
    int udp = socket(AF_INET, SOCK_DGRAM, 0);

    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (size < 1 || size > LONGEST || bind(udp, (struct sockaddr *)&own, sizeof own)
        || getsockname(udp, (struct sockaddr *)&own, &own_size)) {
        fprintf(stderr, "use: cecho BYTES (1 to %d)\n", LONGEST);
        return 1;
    }
    printf("%d\n", ntohs(own.sin_port));
    fflush(stdout);
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
