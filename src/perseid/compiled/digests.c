#include "digests.h"

#include <string.h>

enum { BLOCK = 64, LENGTH_SIZE = 8, MAX_WORDS = 8 };

typedef void (*compress_fn)(uint32_t *state, const uint8_t *block);

static uint32_t rotate_left(uint32_t x, unsigned bits) { return x << bits | x >> (32 - bits); }

static uint32_t rotate_right(uint32_t x, unsigned bits) { return x >> bits | x << (32 - bits); }

static uint32_t load_word(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

/* Section 6.1.2. */
static void compress_sha1(uint32_t *state, const uint8_t *block)
{
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];

    for (int t = 0; t < 16; t++)
        w[t] = load_word(block + 4 * t);
    for (int t = 16; t < 80; t++)
        w[t] = rotate_left(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    for (int t = 0; t < 80; t++) {
        uint32_t f, k;
        if (t < 20)
            f = (b & c) ^ (~b & d), k = 0x5a827999;
        else if (t < 40)
            f = b ^ c ^ d, k = 0x6ed9eba1;
        else if (t < 60)
            f = (b & c) ^ (b & d) ^ (c & d), k = 0x8f1bbcdc;
        else
            f = b ^ c ^ d, k = 0xca62c1d6;
        uint32_t next = rotate_left(a, 5) + f + e + k + w[t];
        e = d, d = c, c = rotate_left(b, 30), b = a, a = next;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

/* Section 4.2.2. */
static const uint32_t ROUND_CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* Section 6.2.2. */
static void compress_sha256(uint32_t *state, const uint8_t *block)
{
    uint32_t w[64], s[8];

    memcpy(s, state, sizeof s);
    for (int t = 0; t < 16; t++)
        w[t] = load_word(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotate_right(w[t - 15], 7) ^ rotate_right(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotate_right(w[t - 2], 17) ^ rotate_right(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    for (int t = 0; t < 64; t++) {
        uint32_t s1 = rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25);
        uint32_t chosen = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t first = s[7] + s1 + chosen + ROUND_CONSTANTS[t] + w[t];
        uint32_t s0 = rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22);
        uint32_t second = s0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

/* Section 5.1.1: whole blocks, then the rest with padding and the length in bits. */
static void hash_data(compress_fn compress, uint32_t *state, const uint8_t *data, size_t size)
{
    uint8_t rest[2 * BLOCK] = {0};
    size_t whole = size - size % BLOCK, left = size % BLOCK;
    size_t padded = left + 1 + LENGTH_SIZE <= BLOCK ? BLOCK : 2 * BLOCK;
    uint64_t bits = (uint64_t)size * 8;

    for (size_t at = 0; at < whole; at += BLOCK)
        compress(state, data + at);
    if (left)
        memcpy(rest, data + whole, left);
    rest[left] = 0x80;
    for (int i = 0; i < LENGTH_SIZE; i++)
        rest[padded - 1 - (size_t)i] = (uint8_t)(bits >> 8 * i);
    for (size_t at = 0; at < padded; at += BLOCK)
        compress(state, rest + at);
}

static void store_words(const uint32_t *state, int words, uint8_t *digest)
{
    for (int i = 0; i < 4 * words; i++)
        digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha1(const uint8_t *data, size_t size, uint8_t digest[SHA1_SIZE])
{
    uint32_t state[MAX_WORDS] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};

    hash_data(compress_sha1, state, data, size);
    store_words(state, SHA1_SIZE / 4, digest);
}

void sha256(const uint8_t *data, size_t size, uint8_t digest[SHA256_SIZE])
{
    uint32_t state[MAX_WORDS] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    hash_data(compress_sha256, state, data, size);
    store_words(state, SHA256_SIZE / 4, digest);
}
