/* Rate limits of bytes over UDP, by network: `TrafficLimit` of perseid.server.limits.udp on the same shared memory. */
#ifndef PERSEID_TRAFFIC_H
#define PERSEID_TRAFFIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { MAX_EXEMPT = 256 };

/* An address with its network first; IPv4-mapped IPv6 is IPv4. */
typedef struct {
    bool is_ipv4;
    uint8_t bytes[16]; /* IPv4: the first four */
} ip_t;

typedef struct {
    ip_t address;
    unsigned bits;
} network_t;

typedef struct {
    double *slots; /* times at which buckets are full again; the first is that of all networks */
    uint64_t secret;
    uint64_t size; /* buckets of networks */
    double seconds, ahead, total_seconds, total_ahead;
    network_t exempt[MAX_EXEMPT];
    size_t exempt_count;
} traffic_limit_t;

bool read_ip(const struct sockaddr *address, ip_t *ip);

/* Whether an address is in one of the exempt networks. */
bool is_exempt(const traffic_limit_t *limit, const ip_t *ip);

/* Charge an address at a monotonic time; return whether it was within the limits. A refusal costs nothing. */
bool traffic_allows(const traffic_limit_t *limit, const ip_t *ip, double cost, double now);

/* The bucket of a network, without the first one: the same in Python. */
uint64_t choose_bucket(uint64_t secret, uint64_t network, uint64_t size);

#endif
