/* Public resolution: one request in, one response out, or none. No input or output of its own.
 *
 * The specification is `perseid.server.native.resolution`, whose responses are the same bytes; the format of the view
 * is docs/reference/answers-format.md, named "view" in comments. A request that is not answered here is left to
 * Python: what needs the ledger, and what is rare. Requests and the view may contain any bytes.
 */
#ifndef PERSEID_RESOLUTION_H
#define PERSEID_RESOLUTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_PACKET = 512,
    ENVELOPE_SIZE = 20,
    PACKET_PAYLOAD = MAX_PACKET - ENVELOPE_SIZE,
    MAX_PACKETS = 16,
    MAX_RESPONSE = ENVELOPE_SIZE + MAX_PACKETS * PACKET_PAYLOAD,
};

/* Response codes of the protocol that occur here. */
enum {
    CODE_SUCCESS = 1,
    CODE_ERROR = 2,
    CODE_NOT_FOUND = 100,
    CODE_NO_VALUES = 200,
    CODE_NOT_RESPONSIBLE = 301,
    CODE_REFERRAL = 303,
};

typedef struct {
    const uint8_t *data;
    size_t size;
} bytes_t;

/* Databases of the view. */
typedef enum { STORE_HANDLES, STORE_PREFIXES } store_t;

/* Find the bytes under a key: 1, 0 if there are none, -1 on an error. They are valid until the response is made. */
typedef int (*lookup_fn)(void *view, store_t store, bytes_t key, bytes_t *found);

/* Like `ResolutionSettings`, of a site with one server. */
typedef struct {
    int16_t serial;
    bool is_primary;
    bool default_sensitive;
    bool default_cordra;
    bool templates;
} resolution_settings_t;

typedef struct {
    uint32_t code;
    size_t size;       /* of the response */
    bytes_t requested; /* the name in the request */
    bytes_t prefix;    /* of the name, as spelled */
} answer_t;

/* Write the response with its envelope, as over TCP, at `out`; false leaves the request to Python. `now`: unix time. */
bool resolve_request(const resolution_settings_t *settings, lookup_fn lookup, void *view, bytes_t request,
                     uint32_t now, uint8_t out[MAX_RESPONSE], answer_t *answer);

/* Write RC_ERROR with a text, hardly longer than the request, which `resolve_request` has answered; return its size. */
size_t refuse_request(bytes_t request, bytes_t text, uint32_t now, uint8_t out[MAX_PACKET]);

#endif
