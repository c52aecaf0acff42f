#include "tally.h"

#include <string.h>

enum {
    MAX_PROBES = 16, /* names chosen to collide are counted together, and cost no time */
    HALF = TALLY_SLOTS / 2,
};

/* FNV-1a. */
static uint32_t hash_name(tally_kind_t kind, bytes_t name)
{
    uint32_t hash = (2166136261u ^ (uint32_t)kind) * 16777619u;

    for (size_t i = 0; i < name.size; i++)
        hash = (hash ^ name.data[i]) * 16777619u;
    return hash;
}

static tally_slot_t *find_slot(tally_t *tally, tally_kind_t kind, bytes_t name)
{
    uint32_t hash = hash_name(kind, name), half = kind == TALLY_MISSING;

    for (uint32_t probe = 0; probe < MAX_PROBES; probe++) {
        tally_slot_t *slot = &tally->slots[half * HALF + (hash + probe) % HALF];
        if (slot->kind == kind && slot->size == name.size && !memcmp(slot->name, name.data, name.size))
            return slot;
        if (slot->kind != TALLY_FREE)
            continue;
        if (tally->used[half] >= MAX_TALLIED)
            return NULL;
        tally->used[half]++;
        slot->kind = (uint8_t)kind;
        slot->size = (uint8_t)name.size;
        memcpy(slot->name, name.data, name.size);
        return slot;
    }
    return NULL;
}

void tally_count(tally_t *tally, tally_kind_t kind, bytes_t name)
{
    tally_slot_t *slot = name.size > MAX_TALLIED_NAME ? NULL : find_slot(tally, kind, name);

    if (slot == NULL)
        tally->others[kind]++;
    else
        slot->count++;
}
