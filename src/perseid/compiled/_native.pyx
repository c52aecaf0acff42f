# cython: language_level=3, binding=False
"""The compiled module: what Python needs of the C files beside it."""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EBUSY
from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy


cdef extern from "lmdb.h" nogil:
    ctypedef struct MDB_env
    ctypedef struct MDB_txn
    ctypedef unsigned int MDB_dbi
    ctypedef struct MDB_val:
        size_t mv_size
        void *mv_data
    int MDB_RDONLY, MDB_NOTFOUND
    char *mdb_version(int *major, int *minor, int *patch)
    char *mdb_strerror(int error)
    int mdb_txn_begin(MDB_env *env, MDB_txn *parent, unsigned int flags, MDB_txn **txn)
    void mdb_txn_abort(MDB_txn *txn)
    void mdb_txn_reset(MDB_txn *txn)
    int mdb_txn_renew(MDB_txn *txn)
    size_t mdb_txn_id(MDB_txn *txn)
    int mdb_get(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data)


cdef extern from "resolution.h" nogil:
    enum: MAX_PACKET
    enum: MAX_RESPONSE
    ctypedef struct bytes_t:
        const uint8_t *data
        size_t size
    ctypedef enum store_t:
        STORE_HANDLES
        STORE_PREFIXES
    ctypedef int (*lookup_fn)(void *view, store_t store, bytes_t key, bytes_t *found) noexcept nogil
    ctypedef struct resolution_settings_t:
        int16_t serial
        bint is_primary
        bint default_sensitive
        bint default_cordra
        bint templates
    ctypedef struct answer_t:
        uint32_t code
        size_t size
        bytes_t requested
        bytes_t prefix
    bint resolve_request(const resolution_settings_t *settings, lookup_fn lookup, void *view, bytes_t request,
                         uint32_t now, uint8_t *out, answer_t *answer)
    size_t refuse_request(bytes_t request, bytes_t text, uint32_t now, uint8_t *out)


cdef extern from "view.h" nogil:
    enum: DATABASES
    ctypedef struct view_t:
        MDB_env *env
        MDB_dbi databases[5]
    int view_open(view_t **view, const char *path, size_t map_size, const char *const *names, int state_file,
                  uint64_t generation)
    void view_close(view_t *view)
    void view_release(view_t *view)


cdef extern from "traffic.h" nogil:
    enum: MAX_EXEMPT
    ctypedef struct ip_t:
        bint is_ipv4
        uint8_t bytes[16]
    ctypedef struct network_t:
        ip_t address
        unsigned bits
    ctypedef struct traffic_limit_t:
        double *slots
        uint64_t secret
        uint64_t size
        double seconds
        double ahead
        double total_seconds
        double total_ahead
        network_t exempt[256]
        size_t exempt_count
    uint64_t choose_bucket(uint64_t secret, uint64_t network, uint64_t size)


cdef extern from "tally.h" nogil:
    enum: TALLY_SLOTS
    enum: TALLY_FOUND
    enum: TALLY_UNKNOWN
    enum: TALLY_MISSING
    ctypedef struct tally_slot_t:
        uint64_t count
        uint8_t kind
        uint8_t size
        uint8_t name[255]
    ctypedef struct tally_t:
        uint64_t others[4]
        size_t used[2]
        tally_slot_t slots[4096]


cdef extern from "sys/socket.h" nogil:
    enum: AF_INET
    enum: AF_INET6
    struct sockaddr:
        unsigned short sa_family


cdef extern from "netinet/in.h" nogil:
    struct in_addr:
        pass
    struct in6_addr:
        pass
    struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        uint16_t sin6_port
        uint32_t sin6_flowinfo
        in6_addr sin6_addr
        uint32_t sin6_scope_id
    uint16_t ntohs(uint16_t number)
    uint32_t ntohl(uint32_t number)


cdef extern from "arpa/inet.h" nogil:
    const char *inet_ntop(int family, const void *address, char *text, unsigned int size)


cdef extern from "loop.h" nogil:
    enum: COUNTED_CODES
    ctypedef union address_t:
        sockaddr any
        sockaddr_in ipv4
        sockaddr_in6 ipv6
    ctypedef struct log_entry_t:
        address_t sender
        bint is_tcp
        uint32_t code
        uint32_t microseconds
        size_t name_size
        uint8_t name[512]
    ctypedef struct transport_settings_t:
        bint resolves
        bint logs
    ctypedef struct connection_settings_t:
        void *counters
        size_t rows
        size_t own_row
        uint64_t secret
        uint64_t size
        uint32_t most
        uint32_t most_of_network
        double idle_seconds
    ctypedef struct loop_settings_t:
        resolution_settings_t resolution
        traffic_limit_t traffic
        uint8_t refusal_text[64]
        size_t refusal_text_size
        transport_settings_t udp
        transport_settings_t tcp
        connection_settings_t connections
    ctypedef struct loop_counts_t:
        uint64_t udp[512]
        uint64_t tcp[512]
        uint64_t bytes_sent
        uint64_t rate_limited
        uint64_t unsent
        uint64_t overflows
        uint64_t idle
        uint64_t exhausted
    ctypedef struct loop_t
    loop_t *loop_create(int udp, const int *listeners, size_t listener_count)
    void loop_destroy(loop_t *loop)
    void loop_configure(loop_t *loop, const loop_settings_t *settings)
    void loop_read_settings(loop_t *loop, loop_settings_t *settings)
    void loop_use_view(loop_t *loop, view_t *view)
    int loop_start(loop_t *loop)
    void loop_stop(loop_t *loop)
    double loop_last_beat(const loop_t *loop)
    int loop_event(const loop_t *loop)
    size_t loop_take_log(loop_t *loop, log_entry_t *entries, size_t limit)
    void loop_read_counts(loop_t *loop, loop_counts_t *counts)
    tally_t *loop_take_tally(loop_t *loop)


cdef extern from "udp.h" nogil:
    ctypedef struct datagram_t:
        address_t sender
        uint8_t info[20]
        size_t info_size
        size_t size
        uint8_t data[513]
    size_t udp_take_datagrams(loop_t *loop, datagram_t *datagrams, size_t limit)


cdef extern from "tcp.h" nogil:
    enum: MAX_QUEUED
    ctypedef enum reason_t:
        UNADMITTED
        UNANSWERED
        ANSWERED
        ANSWERED_KEPT
    ctypedef struct connection_t:
        int descriptor
        address_t peer
        reason_t reason
        size_t size
        uint8_t data[7892]
    bint tcp_take_connection(loop_t *loop, connection_t *connection)


cdef enum:
    SPARE_TRANSACTIONS = 4  # read transactions kept for reuse
    MAX_TAKEN = 64          # datagrams, connections or lines of the log that the event loop takes at a time
    MAX_LISTENERS = 64


MAX_NETWORKS = MAX_EXEMPT
MAX_UNADMITTED = MAX_QUEUED + MAX_TAKEN


def lmdb_version():
    """Return the version of LMDB of the system."""
    cdef int major, minor, patch
    mdb_version(&major, &minor, &patch)
    return major, minor, patch


def find_bucket(uint64_t secret, uint64_t network, uint64_t size):
    """Return the bucket of a network, as `TrafficLimit` does."""
    return choose_bucket(secret, network, size)


# The answers view


cdef set _open_paths = set()  # closing one of two environments of a folder would release the locks of both


@cython.no_gc_clear
cdef class Environment:
    """A generation of the answers view, for reading: an environment of LMDB, with the methods of `lmdb.Environment`.

    `to_error` makes the exception from an error number and its text. A folder can only be open once.
    """

    cdef view_t *view
    cdef bytes folder
    cdef object to_error
    cdef tuple names
    cdef MDB_txn *spare[SPARE_TRANSACTIONS]
    cdef int spare_count
    cdef object __weakref__

    def __cinit__(self, str path, size_t map_size, tuple names, int state_file, uint64_t generation, to_error):
        cdef const char *c_names[DATABASES]
        cdef int i
        if len(names) != DATABASES:
            raise ValueError(f"{len(names)} databases instead of {DATABASES}")
        self.to_error = to_error
        self.names = names
        for i in range(DATABASES):
            c_names[i] = names[i]
        folder = path.encode("utf-8", "surrogateescape")
        if folder in _open_paths:
            raise self.to_error(EBUSY, "the environment is already open in this process")
        error = view_open(&self.view, folder, map_size, c_names, state_file, generation)
        if error:
            self.view = NULL
            self.fail(error)
        _open_paths.add(folder)
        self.folder = folder

    def __dealloc__(self):
        if self.view != NULL:
            while self.spare_count:
                self.spare_count -= 1
                mdb_txn_abort(self.spare[self.spare_count])
            with nogil:
                view_close(self.view)
            _open_paths.discard(self.folder)
            view_release(self.view)

    cdef fail(self, int error):
        raise self.to_error(error, mdb_strerror(error).decode("utf-8", "replace"))

    def open_db(self, bytes name, bint create=False):
        return self.view.databases[self.names.index(name)]

    def reader_check(self):
        """Done when it was opened."""

    def begin(self, db=None):
        cdef Transaction txn = Transaction.__new__(Transaction)
        cdef int error
        if self.spare_count:
            self.spare_count -= 1
            txn.txn = self.spare[self.spare_count]
            error = mdb_txn_renew(txn.txn)
            if error:
                mdb_txn_abort(txn.txn)
        else:
            error = mdb_txn_begin(self.view.env, NULL, MDB_RDONLY, &txn.txn)
        if error:
            txn.txn = NULL
            self.fail(error)
        txn.env = self
        txn.db = 0 if db is None else db
        return txn

    cdef void end(self, MDB_txn *txn) noexcept:
        if self.spare_count < SPARE_TRANSACTIONS:
            mdb_txn_reset(txn)
            self.spare[self.spare_count] = txn
            self.spare_count += 1
        else:
            mdb_txn_abort(txn)


@cython.no_gc_clear  # the environment is needed to end it
cdef class Transaction:
    """A read transaction; `abort` ends it."""

    cdef Environment env
    cdef MDB_txn *txn
    cdef MDB_dbi db

    def __dealloc__(self):
        if self.txn != NULL:
            self.env.end(self.txn)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.abort()

    def abort(self):
        if self.txn != NULL:
            self.env.end(self.txn)
            self.txn = NULL

    def id(self):
        self.check()
        return mdb_txn_id(self.txn)

    def get(self, bytes key not None, default=None, db=None):
        cdef MDB_val wanted, found
        cdef int error
        self.check()
        wanted.mv_data = PyBytes_AS_STRING(key)
        wanted.mv_size = PyBytes_GET_SIZE(key)
        error = mdb_get(self.txn, self.db if db is None else <MDB_dbi>db, &wanted, &found)
        if error == MDB_NOTFOUND:
            return default
        if error:
            self.env.fail(error)
        return (<const char *>found.mv_data)[:found.mv_size]

    cdef check(self):
        if self.txn == NULL:
            raise ValueError("the transaction has ended")


# Resolution


cdef void read_settings(settings, resolution_settings_t *read):
    read.serial = settings.serial
    read.is_primary = settings.is_primary
    read.default_sensitive = settings.default_sensitive
    read.default_cordra = settings.default_scheme == "cordra"
    read.templates = settings.templates


cdef bytes_t bytes_of(bytes data):
    cdef bytes_t result
    result.data = <const uint8_t *>PyBytes_AS_STRING(data)
    result.size = PyBytes_GET_SIZE(data)
    return result


cdef class _Lookup:
    """What a function of Python returns, in memory of exactly its size: sanitizers see every read beyond it."""

    cdef object get
    cdef list copies

    def __cinit__(self, get):
        self.get = get
        self.copies = []

    cdef int find(self, store_t store, bytes_t key, bytes_t *found):
        value = self.get("handles" if store == STORE_HANDLES else "prefixes", (<const char *>key.data)[:key.size])
        if value is None:
            return 0
        copied = Copy(value)
        self.copies.append(copied)
        found[0] = (<Copy>copied).bytes
        return 1


cdef class Copy:
    cdef bytes_t bytes

    def __cinit__(self, bytes data not None):
        self.bytes.size = len(data)
        self.bytes.data = <const uint8_t *>malloc(self.bytes.size + (self.bytes.size == 0))
        if self.bytes.data == NULL:
            raise MemoryError
        memcpy(<void *>self.bytes.data, PyBytes_AS_STRING(data), self.bytes.size)

    def __dealloc__(self):
        free(<void *>self.bytes.data)


cdef int find_by_function(void *context, store_t store, bytes_t key, bytes_t *found) noexcept with gil:
    try:
        return (<_Lookup>context).find(store, key, found)
    except Exception:
        return -1


def answer(settings, get, bytes datagram not None, uint32_t now):
    """Answer like `PublicResolver` from what a function returns, for comparison and fuzzing. The site has one server."""
    cdef resolution_settings_t read
    cdef answer_t answered
    cdef uint8_t *out
    cdef _Lookup lookup = _Lookup(get)
    cdef Copy request = Copy(datagram)
    cdef bint is_answered
    read_settings(settings, &read)
    out = <uint8_t *>malloc(MAX_RESPONSE)
    if out == NULL:
        raise MemoryError
    try:
        with nogil:
            is_answered = resolve_request(&read, find_by_function, <void *>lookup, request.bytes, now, out, &answered)
        return (<const char *>out)[:answered.size] if is_answered else None
    finally:
        free(out)


def refuse(bytes datagram not None, bytes text not None, uint32_t now):
    """Return `short_response` to a request that `answer` answers, for comparison."""
    cdef uint8_t out[MAX_PACKET]
    cdef Copy request = Copy(datagram)
    cdef size_t size = refuse_request(request.bytes, bytes_of(text), now, out)
    return (<const char *>out)[:size] if size else None


# The thread


cdef tuple to_address(const address_t *address):
    cdef char text[64]
    text[0] = 0
    if address.any.sa_family == AF_INET6:
        inet_ntop(AF_INET6, &address.ipv6.sin6_addr, text, sizeof(text))
        return (
            text.decode("ascii"),
            ntohs(address.ipv6.sin6_port),
            ntohl(address.ipv6.sin6_flowinfo),
            address.ipv6.sin6_scope_id,
        )
    inet_ntop(AF_INET, &address.ipv4.sin_addr, text, sizeof(text))
    return text.decode("ascii"), ntohs(address.ipv4.sin_port)


@cython.no_gc_clear  # the thread uses the shared memory until it ends
cdef class Loop:
    """A thread that answers public resolution on a UDP socket (-1: on none) and on listening TCP sockets.

    These stay the caller's. The listening ones must not block.
    """

    cdef loop_t *loop
    cdef view_t *view  # that the loop uses, for comparison only
    cdef Py_buffer slots  # keeps the shared memory of the limits mapped
    cdef Py_buffer counters  # the same of connections

    def __cinit__(self, int udp, listeners=()):
        cdef int descriptors[MAX_LISTENERS]
        cdef size_t count = 0
        if len(listeners) > MAX_LISTENERS:
            raise ValueError(f"more than {MAX_LISTENERS} listening sockets")
        for listener in listeners:
            descriptors[count] = listener
            count += 1
        self.loop = loop_create(udp, descriptors, count)
        if self.loop == NULL:
            raise OSError("cannot create the loop")

    def __dealloc__(self):
        if self.loop != NULL:
            with nogil:
                loop_destroy(self.loop)
        if self.slots.buf != NULL:
            PyBuffer_Release(&self.slots)
        if self.counters.buf != NULL:
            PyBuffer_Release(&self.counters)

    def configure(self, resolution, traffic, bytes refusal_text not None, *, bint resolves, bint logs):
        """Replace the settings of resolution, which has one server, and of UDP."""
        cdef loop_settings_t *settings
        cdef Py_buffer slots, before = self.slots
        cdef bytes prefix
        if len(traffic.exempt) > MAX_EXEMPT:
            raise ValueError(f"more than {MAX_EXEMPT} networks")
        PyObject_GetBuffer(traffic.slots, &slots, PyBUF_WRITABLE)
        if slots.len < 2 * <Py_ssize_t>sizeof(double):
            PyBuffer_Release(&slots)
            raise ValueError("no buckets")
        settings = <loop_settings_t *>calloc(1, sizeof(loop_settings_t))
        if settings == NULL:
            PyBuffer_Release(&slots)
            raise MemoryError
        with nogil:
            loop_read_settings(self.loop, settings)
        try:
            read_settings(resolution, &settings.resolution)
            settings.udp.resolves = resolves
            settings.udp.logs = logs
            settings.traffic.exempt_count = 0
            settings.traffic.slots = <double *>slots.buf
            settings.traffic.secret = traffic.secret
            settings.traffic.size = slots.len // sizeof(double) - 1
            settings.traffic.seconds, settings.traffic.ahead = traffic.network
            settings.traffic.total_seconds, settings.traffic.total_ahead = traffic.total
            for is_ipv4, prefix, bits in traffic.exempt:
                memcpy(settings.traffic.exempt[settings.traffic.exempt_count].address.bytes,
                       PyBytes_AS_STRING(prefix), min(16, len(prefix)))
                settings.traffic.exempt[settings.traffic.exempt_count].address.is_ipv4 = is_ipv4
                settings.traffic.exempt[settings.traffic.exempt_count].bits = min(128, bits)
                settings.traffic.exempt_count += 1
            settings.refusal_text_size = min(64, len(refusal_text))
            memcpy(settings.refusal_text, PyBytes_AS_STRING(refusal_text), settings.refusal_text_size)
        except BaseException:
            PyBuffer_Release(&slots)
            free(settings)
            raise
        with nogil:
            loop_configure(self.loop, settings)
        free(settings)
        self.slots = slots
        if before.buf != NULL:
            PyBuffer_Release(&before)

    def configure_tcp(self, limits, *, bint resolves, bint logs):
        """Replace the settings of TCP. The counters of connections are the same as in the last call."""
        cdef loop_settings_t *settings
        cdef Py_buffer counters, before = self.counters
        PyObject_GetBuffer(limits.counters, &counters, PyBUF_WRITABLE)
        settings = <loop_settings_t *>calloc(1, sizeof(loop_settings_t))
        if settings == NULL:
            PyBuffer_Release(&counters)
            raise MemoryError
        try:
            with nogil:
                loop_read_settings(self.loop, settings)
            settings.tcp.resolves = resolves
            settings.tcp.logs = logs
            settings.connections.counters = counters.buf
            settings.connections.rows = limits.rows
            settings.connections.own_row = limits.own_row
            settings.connections.secret = limits.secret
            settings.connections.most = limits.most
            settings.connections.most_of_network = limits.most_of_network
            settings.connections.idle_seconds = limits.idle_seconds
            if settings.connections.own_row >= settings.connections.rows:
                raise ValueError("no such row")
            settings.connections.size = counters.len // sizeof(uint32_t) // settings.connections.rows - 1
            if not 0 < settings.connections.size < 1 << 32:
                raise ValueError("no counters")
        except BaseException:
            PyBuffer_Release(&counters)
            free(settings)
            raise
        with nogil:
            loop_configure(self.loop, settings)
        free(settings)
        self.counters = counters
        if before.buf != NULL:
            PyBuffer_Release(&before)

    def use(self, Environment env):
        """Answer from a generation until it is closed or is not the current one; then leave everything to Python."""
        cdef view_t *view = NULL if env is None else env.view
        if view != self.view:
            with nogil:
                loop_use_view(self.loop, view)
            self.view = view

    def start(self):
        cdef int error = loop_start(self.loop)
        if error:
            raise OSError(error, "cannot start the loop")

    def stop(self):
        """Wait until what it has read is answered or can be taken; end the connections that it keeps."""
        with nogil:
            loop_stop(self.loop)

    @property
    def last_beat(self):
        """Monotonic time at which the thread was last seen running."""
        return loop_last_beat(self.loop)

    def fileno(self):
        """A descriptor that is readable when there is something to take; read its eight bytes first."""
        return loop_event(self.loop)

    def take_datagrams(self):
        """Take some datagrams that were not answered: content, sender, ancillary data with the local address."""
        cdef datagram_t *taken = <datagram_t *>malloc(MAX_TAKEN * sizeof(datagram_t))
        cdef size_t count, i
        if taken == NULL:
            raise MemoryError
        try:
            with nogil:
                count = udp_take_datagrams(self.loop, taken, MAX_TAKEN)
            return [
                (
                    (<const char *>taken[i].data)[:taken[i].size],
                    to_address(&taken[i].sender),
                    (<const char *>taken[i].info)[:taken[i].info_size],
                )
                for i in range(count)
            ]
        finally:
            free(taken)

    def take_connections(self):
        """Take some connections that the event loop must serve, with the rest of what was received or is to be sent.

        Each has its descriptor, which becomes the caller's, its family, the address, whether it was admitted and
        counted until now, the bytes received, the bytes that remain of a response (None: there is no response), and
        whether the client keeps it after that.
        """
        cdef connection_t *taken = <connection_t *>malloc(sizeof(connection_t))
        cdef bint is_taken
        if taken == NULL:
            raise MemoryError
        result = []
        try:
            for _ in range(MAX_TAKEN):
                with nogil:
                    is_taken = tcp_take_connection(self.loop, taken)
                if not is_taken:
                    break
                data = (<const char *>taken.data)[:taken.size]
                is_answered = taken.reason == ANSWERED or taken.reason == ANSWERED_KEPT
                result.append(
                    (
                        taken.descriptor,
                        taken.peer.any.sa_family,
                        to_address(&taken.peer)[0],
                        taken.reason != UNADMITTED,
                        b"" if is_answered else data,
                        data if is_answered else None,
                        taken.reason == ANSWERED_KEPT,
                    )
                )
            return result
        finally:
            free(taken)

    def take_log(self):
        """Take some answered requests, if the settings say so.

        Each has its transport, sender, response code, name and microseconds.
        """
        cdef log_entry_t *taken = <log_entry_t *>malloc(MAX_TAKEN * sizeof(log_entry_t))
        cdef size_t count, i
        if taken == NULL:
            raise MemoryError
        try:
            with nogil:
                count = loop_take_log(self.loop, taken, MAX_TAKEN)
            return [
                (
                    "tcp" if taken[i].is_tcp else "udp",
                    to_address(&taken[i].sender)[0],
                    taken[i].code,
                    (<const char *>taken[i].name)[:taken[i].name_size],
                    taken[i].microseconds,
                )
                for i in range(count)
            ]
        finally:
            free(taken)

    def counts(self):
        """Return responses over UDP by code, bytes sent, requests over the rate limit, unsent responses, lost datagrams."""
        cdef loop_counts_t *counts = self.read_counts()
        try:
            responses = {code: counts.udp[code] for code in range(COUNTED_CODES) if counts.udp[code]}
            return responses, counts.bytes_sent, counts.rate_limited, counts.unsent, counts.overflows
        finally:
            free(counts)

    def tcp_counts(self):
        """Return responses over TCP by code, connections that were idle for too long, and how often no descriptor was left."""
        cdef loop_counts_t *counts = self.read_counts()
        try:
            responses = {code: counts.tcp[code] for code in range(COUNTED_CODES) if counts.tcp[code]}
            return responses, counts.idle, counts.exhausted
        finally:
            free(counts)

    cdef loop_counts_t *read_counts(self) except NULL:
        cdef loop_counts_t *counts = <loop_counts_t *>malloc(sizeof(loop_counts_t))
        if counts == NULL:
            raise MemoryError
        with nogil:
            loop_read_counts(self.loop, counts)
        return counts

    def take_tally(self):
        """Take the counts since the last call: found and not found by prefix, and not found by name as requested."""
        cdef tally_t *taken
        cdef tally_slot_t *slot
        cdef int i
        with nogil:
            taken = loop_take_tally(self.loop)
        found, unknown, missing = {}, {}, {}
        by_kind = {TALLY_FOUND: found, TALLY_UNKNOWN: unknown, TALLY_MISSING: missing}
        for kind in (TALLY_FOUND, TALLY_UNKNOWN):
            if taken.others[kind]:
                by_kind[kind][b""] = taken.others[kind]
        if taken.used[0] or taken.used[1]:
            for i in range(TALLY_SLOTS):
                slot = &taken.slots[i]
                if slot.count:
                    by_kind[slot.kind][(<const char *>slot.name)[:slot.size]] = slot.count
        return found, unknown, missing
