#include "traffic.h"

#include <netinet/in.h>
#include <string.h>

enum { IPV4_BITS = 24, IPV6_BITS = 56 };

static const uint8_t IPV4_MAPPED[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

bool read_ip(const struct sockaddr *address, ip_t *ip)
{
    memset(ip, 0, sizeof *ip);
    if (address->sa_family == AF_INET) {
        ip->is_ipv4 = true;
        memcpy(ip->bytes, &((const struct sockaddr_in *)address)->sin_addr, 4);
        return true;
    }
    if (address->sa_family != AF_INET6)
        return false;
    const uint8_t *bytes = ((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr;
    ip->is_ipv4 = !memcmp(bytes, IPV4_MAPPED, sizeof IPV4_MAPPED);
    if (ip->is_ipv4)
        memcpy(ip->bytes, bytes + sizeof IPV4_MAPPED, 4);
    else
        memcpy(ip->bytes, bytes, sizeof ip->bytes);
    return true;
}

static bool is_in_network(const ip_t *ip, const network_t *network)
{
    size_t whole = network->bits / 8;
    unsigned rest = network->bits % 8;

    return ip->is_ipv4 == network->address.is_ipv4 && !memcmp(ip->bytes, network->address.bytes, whole) &&
           (!rest || (ip->bytes[whole] ^ network->address.bytes[whole]) >> (8 - rest) == 0);
}

bool is_exempt(const traffic_limit_t *limit, const ip_t *ip)
{
    for (size_t i = 0; i < limit->exempt_count; i++)
        if (is_in_network(ip, &limit->exempt[i]))
            return true;
    return false;
}

/* The network as a unique number: IPv4 ones have a bit before them. */
static uint64_t network_number(const ip_t *ip)
{
    unsigned bits = ip->is_ipv4 ? IPV4_BITS : IPV6_BITS;
    uint64_t number = ip->is_ipv4;

    for (unsigned i = 0; i < bits / 8; i++)
        number = number << 8 | ip->bytes[i];
    return number;
}

/* The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t choose_bucket(uint64_t secret, uint64_t network, uint64_t size)
{
    return mix(mix(network ^ secret) + secret) % size;
}

/* Other processes, and the event loop, read and write the same words. */
static double load_time(const double *bucket)
{
    double time;

    __atomic_load(bucket, &time, __ATOMIC_RELAXED);
    return time;
}

static void store_time(double *bucket, double time) { __atomic_store(bucket, &time, __ATOMIC_RELAXED); }

static double later(double one, double other) { return one < other ? other : one; }

bool traffic_allows(const traffic_limit_t *limit, const ip_t *ip, double cost, double now)
{
    double *bucket, due, total;

    if (cost <= 0 || is_exempt(limit, ip))
        return true;
    bucket = limit->slots + 1 + choose_bucket(limit->secret, network_number(ip), limit->size);
    due = later(load_time(bucket), now) + cost * limit->seconds;
    total = later(load_time(limit->slots), now) + cost * limit->total_seconds;
    if (due - now > limit->ahead || total - now > limit->total_ahead)
        return false;
    store_time(bucket, due);
    store_time(limit->slots, total);
    return true;
}
