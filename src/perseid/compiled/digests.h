/* SHA-1 and SHA-256 (FIPS 180-4) of short data: digests of requests, without a library to install. */
#ifndef PERSEID_DIGESTS_H
#define PERSEID_DIGESTS_H

#include <stddef.h>
#include <stdint.h>

enum { SHA1_SIZE = 20, SHA256_SIZE = 32 };

void sha1(const uint8_t *data, size_t size, uint8_t digest[SHA1_SIZE]);
void sha256(const uint8_t *data, size_t size, uint8_t digest[SHA256_SIZE]);

#endif
