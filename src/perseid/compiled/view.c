#include "view.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Words of the state file. */
enum { WORD_GENERATION = 2, WORD_NEEDED = 3 };

static int open_databases(view_t *view, const char *const names[DATABASES])
{
    MDB_txn *txn;
    int error = mdb_txn_begin(view->env, NULL, MDB_RDONLY, &txn);

    if (error)
        return error;
    for (int i = 0; i < DATABASES && !error; i++)
        error = mdb_dbi_open(txn, names[i], 0, &view->databases[i]);
    if (!error)
        return mdb_txn_commit(txn);
    mdb_txn_abort(txn);
    return error;
}

static int open_environment(view_t *view, const char *path, size_t map_size, const char *const names[DATABASES])
{
    int stale, error = mdb_env_create(&view->env);

    if (error)
        return error;
    error = mdb_env_set_mapsize(view->env, map_size);
    if (!error)
        error = mdb_env_set_maxdbs(view->env, DATABASES);
    if (!error)
        error = mdb_env_open(view->env, path, MDB_RDONLY | MDB_NOTLS, 0600);
    if (!error)
        error = mdb_reader_check(view->env, &stale);
    if (!error)
        error = open_databases(view, names);
    return error;
}

int view_open(view_t **opened, const char *path, size_t map_size, const char *const names[DATABASES], int state_file,
              uint64_t generation)
{
    view_t *view = calloc(1, sizeof *view);
    void *state;
    int error;

    if (view == NULL)
        return ENOMEM;
    state = mmap(NULL, STATE_FILE_SIZE, PROT_READ, MAP_SHARED, state_file, 0);
    if (state == MAP_FAILED) {
        error = errno;
        free(view);
        return error;
    }
    view->state = state;
    view->generation = generation;
    atomic_init(&view->references, 1);
    pthread_mutex_init(&view->lock, NULL);
    error = open_environment(view, path, map_size, names);
    if (error) {
        view_close(view);
        view_release(view);
        return error;
    }
    *opened = view;
    return 0;
}

void view_close(view_t *view)
{
    pthread_mutex_lock(&view->lock);
    if (view->txn != NULL)
        mdb_txn_abort(view->txn);
    if (view->env != NULL)
        mdb_env_close(view->env);
    view->txn = NULL;
    view->env = NULL;
    pthread_mutex_unlock(&view->lock);
}

void view_retain(view_t *view) { atomic_fetch_add(&view->references, 1); }

void view_release(view_t *view)
{
    if (atomic_fetch_sub(&view->references, 1) != 1)
        return;
    munmap((void *)view->state, STATE_FILE_SIZE);
    pthread_mutex_destroy(&view->lock);
    free(view);
}

static uint64_t load_word(const view_t *view, int word) { return atomic_load(&view->state[word]); }

static bool begin_transaction(view_t *view)
{
    int error = view->txn == NULL ? mdb_txn_begin(view->env, NULL, MDB_RDONLY, &view->txn) : mdb_txn_renew(view->txn);

    if (!error)
        return true;
    if (view->txn != NULL)
        mdb_txn_abort(view->txn);
    view->txn = NULL;
    return false;
}

bool view_begin(view_t *view)
{
    pthread_mutex_lock(&view->lock);
    if (view->env != NULL && load_word(view, WORD_GENERATION) == view->generation && begin_transaction(view)) {
        if (!load_word(view, WORD_NEEDED))
            return true;
        mdb_txn_reset(view->txn);
    }
    pthread_mutex_unlock(&view->lock);
    return false;
}

void view_end(view_t *view)
{
    mdb_txn_reset(view->txn);
    pthread_mutex_unlock(&view->lock);
}

int view_lookup(void *opened, store_t store, bytes_t key, bytes_t *found)
{
    view_t *view = opened;
    MDB_val wanted = {key.size, (void *)key.data}, value;
    int error = mdb_get(view->txn, view->databases[store], &wanted, &value);

    if (error)
        return error == MDB_NOTFOUND ? 0 : -1;
    *found = (bytes_t){value.mv_data, value.mv_size};
    return 1;
}
