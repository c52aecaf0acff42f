/* A generation of the answers view: an LMDB environment that one process opens once.
 *
 * docs/reference/answers-format.md, "When the view may be used": Python opens generations and decides whether they can
 * be used; `view_begin` does only what every read needs, and leaves everything else to Python.
 */
#ifndef PERSEID_VIEW_H
#define PERSEID_VIEW_H

#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>

#include "resolution.h"

enum { DATABASES = 5, STATE_FILE_SIZE = 4096 };

typedef struct view {
    atomic_int references;
    pthread_mutex_t lock;           /* held during a read by `view_begin`, and to close the environment */
    MDB_env *env;                   /* NULL: closed */
    MDB_txn *txn;                   /* of `view_begin`; reset between reads */
    MDB_dbi databases[DATABASES];   /* in the order of `names` */
    const _Atomic uint64_t *state;  /* the mapped state file */
    uint64_t generation;
} view_t;

/* Open a generation, with the databases `names`. The state file stays the caller's. Returns an error of LMDB or 0. */
int view_open(view_t **view, const char *path, size_t map_size, const char *const names[DATABASES], int state_file,
              uint64_t generation);

/* Close the environment, which nobody else uses; others may still hold references to the view. */
void view_close(view_t *view);

void view_retain(view_t *view);
void view_release(view_t *view);

/* Begin to read what is current; false if Python must decide. The view is locked until `view_end`. */
bool view_begin(view_t *view);
void view_end(view_t *view);

/* A `lookup_fn` between `view_begin` and `view_end`. */
int view_lookup(void *view, store_t store, bytes_t key, bytes_t *found);

#endif
