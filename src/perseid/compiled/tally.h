/* Counts by name, of bounded size: what `RequestTally` counts of native requests. */
#ifndef PERSEID_TALLY_H
#define PERSEID_TALLY_H

#include "resolution.h"

enum {
    TALLY_SLOTS = 4096,
    MAX_TALLIED = 1000, /* in each half, until Python takes them, every few seconds; it keeps no more */
    MAX_TALLIED_NAME = 255,
};

/* Records found and handles not found, by prefix; handles not found, by name. */
typedef enum { TALLY_FREE, TALLY_FOUND, TALLY_UNKNOWN, TALLY_MISSING, TALLY_KINDS } tally_kind_t;

typedef struct {
    uint64_t count;
    uint8_t kind;
    uint8_t size;
    uint8_t name[MAX_TALLIED_NAME];
} tally_slot_t;

typedef struct {
    uint64_t others[TALLY_KINDS];    /* what had no slot */
    size_t used[2];                  /* slots of each half */
    tally_slot_t slots[TALLY_SLOTS]; /* of prefixes, then of names, of which clients can invent any number */
} tally_t;

void tally_count(tally_t *tally, tally_kind_t kind, bytes_t name);

#endif
