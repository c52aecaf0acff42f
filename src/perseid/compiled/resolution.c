#include "resolution.h"

#include <string.h>

#include "digests.h"

/* Offsets in a request: the envelope, the header, and the body with the name and two lists. */
enum {
    SESSION_AT = 4,
    REQUEST_ID_AT = 8,
    SEQUENCE_AT = 12,
    LENGTH_AT = 16,
    OPCODE_AT = 20,
    CODE_AT = 24,
    FLAGS_AT = 28,
    SERIAL_AT = 32,
    HOPS_AT = 34,
    EXPIRES_AT = 36,
    BODY_LENGTH_AT = 40,
    BODY_AT = 44,
    NAME_AT = 48,
    HEADER_SIZE = BODY_AT - ENVELOPE_SIZE,
    LENGTH_SIZE = 4,
    CREDENTIAL_SIZE = 4,
};

enum {
    MAJOR = 2,
    MINOR = 11,
    DIGEST_SINCE = 1,    /* minor versions */
    SHA256_SINCE = 7,
    REFERRALS_SINCE = 10,
    OP_RESOLUTION = 1,
    DIGEST_SHA1 = 2,
    DIGEST_SHA256 = 3,
    MESSAGE_LIFETIME = 43200,
    UNKNOWN_SERIAL = 0xFFFF,
};

#define FLAG_AUTHORITATIVE 0x80000000u
#define FLAG_CERTIFY 0x40000000u
#define FLAG_ENCRYPT 0x20000000u
#define FLAG_RECURSIVE 0x10000000u
#define FLAG_CACHE_AUTHENTICATION 0x08000000u
#define FLAG_PUBLIC_ONLY 0x01000000u
#define FLAG_REQUEST_DIGEST 0x00800000u
#define FLAG_DO_NOT_REFER 0x00100000u
#define UNKNOWN_FLAGS 0x000FFFFFu
#define REFUSAL_FLAGS (FLAG_CACHE_AUTHENTICATION | FLAG_PUBLIC_ONLY | FLAG_DO_NOT_REFER | FLAG_REQUEST_DIGEST)
#define ECHOED_FLAGS (REFUSAL_FLAGS | FLAG_AUTHORITATIVE)

static const char WRONG_PREFIX[] = "That prefix doesn't live here";

/* View, "Handle items". */
enum {
    STATE_BITS = 0x07,
    STATE_NORMAL = 1,
    STATE_RESERVED = 2,
    STATE_UNPUBLISHED = 3,
    STATE_TOMBSTONE = 4,
    HANDLE_EXACT = 0x08,
    HANDLE_PRIVATE = 0x10,
    HANDLE_SPELLED = 0x80,
    HANDLE_HEAD_SIZE = 14,
    VALUE_INDEX_SIZE = 4,
    VALUE_TYPE_LENGTH_AT = 14,
    VALUE_TYPE_AT = 18,
};

/* View, "Prefix items". */
enum {
    PREFIX_HOSTED = 0x03,
    PREFIX_MARKER = 0x04,
    PREFIX_TEMPLATES = 0x08,
    PREFIX_CASE_SHIFT = 4,
    PREFIX_CASE_BITS = 0x03,
    PREFIX_UNUSED = 0xC0,
    CASE_NONE = 0,
    CASE_SENSITIVE = 1,
};

enum {
    MAX_KEY = 400,            /* view, "Keys": longer ones have a hash, which Python computes */
    MAX_LEVELS = 32,          /* levels of a derived prefix that are searched, as in Python */
    MAX_SELECTED = 128,       /* indexes and types; a packet has room for hundreds */
    MAX_SEARCHED_VALUES = 256, /* values of a record among which some are selected */
    MAX_NUMBER_SHIFT = 28,    /* view: numbers have at most five bytes */
};

static const bytes_t PREFIX_OF_PREFIXES = {(const uint8_t *)"0.NA", 4};
static const bytes_t SITE_PREFIX = {(const uint8_t *)"0.SITE", 6};

/* Bytes */

static uint32_t load32(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static void store32(uint8_t *to, uint32_t number)
{
    to[0] = (uint8_t)(number >> 24);
    to[1] = (uint8_t)(number >> 16);
    to[2] = (uint8_t)(number >> 8);
    to[3] = (uint8_t)number;
}

static uint8_t fold_byte(uint8_t byte) { return byte >= 'a' && byte <= 'z' ? byte - ('a' - 'A') : byte; }

static bool is_equal(bytes_t a, bytes_t b) { return a.size == b.size && !memcmp(a.data, b.data, a.size); }

static bool is_equal_folded(bytes_t a, bytes_t b)
{
    if (a.size != b.size)
        return false;
    for (size_t i = 0; i < a.size; i++)
        if (fold_byte(a.data[i]) != fold_byte(b.data[i]))
            return false;
    return true;
}

static bool has_byte(bytes_t in, uint8_t byte) { return in.size && memchr(in.data, byte, in.size) != NULL; }

/* The length of a UTF-8 sequence at `at`, 0 if it is invalid (RFC 3629). */
static size_t utf8_sequence(const uint8_t *at, size_t left)
{
    uint8_t first = at[0], low = 0x80, high = 0xBF;
    size_t length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;

    if (length < 2 || length > left)
        return length <= left ? length : 0;
    if (first == 0xE0)
        low = 0xA0; /* not the shortest form */
    else if (first == 0xED)
        high = 0x9F; /* surrogates */
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F; /* beyond U+10FFFF */
    if (at[1] < low || at[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if (at[i] < 0x80 || at[i] > 0xBF)
            return 0;
    return length;
}

static bool is_utf8(bytes_t text)
{
    for (size_t at = 0; at < text.size;) {
        size_t length = utf8_sequence(text.data + at, text.size - at);
        if (!length)
            return false;
        at += length;
    }
    return true;
}

/* Reading the view: every read is checked against the end of the item. */

typedef struct {
    const uint8_t *at, *end;
} cursor_t;

static size_t bytes_left(const cursor_t *cursor) { return (size_t)(cursor->end - cursor->at); }

static bool read_bytes(cursor_t *cursor, uint64_t size, bytes_t *bytes)
{
    if (size > bytes_left(cursor))
        return false;
    bytes->data = cursor->at;
    bytes->size = (size_t)size;
    cursor->at += size;
    return true;
}

/* A LEB128 number in its shortest form. */
static bool read_number(cursor_t *cursor, uint64_t *number)
{
    *number = 0;
    for (unsigned shift = 0; shift <= MAX_NUMBER_SHIFT && cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        *number |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80))
            return byte || !shift;
    }
    return false;
}

/* A run of values: their number, their lengths, and all of them together. */
typedef struct {
    uint64_t count;
    bytes_t lengths; /* encoded, and valid */
    bytes_t values;
} run_t;

static bool read_run(cursor_t *cursor, run_t *run)
{
    uint64_t total = 0, length;

    if (!read_number(cursor, &run->count))
        return false;
    run->lengths.data = cursor->at;
    for (uint64_t i = 0; i < run->count; i++) { /* at most once for each byte that is left */
        if (!read_number(cursor, &length))
            return false;
        total += length;
        if (total > INT32_MAX)
            return false;
    }
    run->lengths.size = (size_t)(cursor->at - run->lengths.data);
    return read_bytes(cursor, total, &run->values);
}

typedef struct {
    uint8_t head;
    bytes_t scheme;
    run_t referrals;
} prefix_item_t;

static bool read_prefix_item(bytes_t item, prefix_item_t *prefix)
{
    cursor_t cursor = {item.data, item.data + item.size};
    uint64_t length;

    if (!item.size)
        return false;
    prefix->head = *cursor.at++;
    return !(prefix->head & PREFIX_UNUSED) && read_number(&cursor, &length) &&
           read_bytes(&cursor, length, &prefix->scheme) && is_utf8(prefix->scheme) &&
           read_run(&cursor, &prefix->referrals) && cursor.at == cursor.end;
}

static unsigned case_rule(const prefix_item_t *prefix) { return prefix->head >> PREFIX_CASE_SHIFT & PREFIX_CASE_BITS; }

typedef struct {
    uint8_t head;
    bytes_t spelling; /* no data: it is the key */
    run_t values;
} handle_item_t;

/* The only item under a key; several are left to Python. */
static bool read_handle_item(bytes_t items, handle_item_t *handle)
{
    cursor_t cursor = {items.data, items.data + items.size};
    bytes_t entry;
    uint64_t length;

    memset(handle, 0, sizeof *handle);
    if (!read_bytes(&cursor, HANDLE_HEAD_SIZE, &entry))
        return false;
    handle->head = entry.data[0];
    if (handle->head & HANDLE_SPELLED && !(read_number(&cursor, &length) && read_bytes(&cursor, length, &handle->spelling)))
        return false;
    return read_run(&cursor, &handle->values) && cursor.at == cursor.end;
}

/* Requests */

typedef struct {
    bytes_t bytes;
    bytes_t lists;  /* indexes and types, empty if all values are requested */
    bytes_t name;   /* as requested */
    bytes_t digest; /* what a digest of the request covers: header and body */
    uint32_t flags;
    uint8_t minor; /* of the version of the response */
} request_t;

/* Versions 2.0 to 2.11, suggesting one of them or nothing, without flags. */
static bool read_versions(const uint8_t *head, uint8_t *minor)
{
    bool is_silent = !head[2] && !head[3];

    if (head[0] != MAJOR || head[1] > MINOR || !(is_silent || (head[2] == MAJOR && head[3] <= MINOR)))
        return false;
    *minor = is_silent ? head[1] : head[3];
    return true;
}

static bool read_request(bytes_t datagram, request_t *request)
{
    const uint8_t *data = datagram.data;
    size_t size = datagram.size;

    if (size < NAME_AT || size > MAX_PACKET || !read_versions(data, &request->minor) || load32(data + SESSION_AT) ||
        load32(data + SEQUENCE_AT) || load32(data + LENGTH_AT) != size - ENVELOPE_SIZE ||
        load32(data + OPCODE_AT) != OP_RESOLUTION || load32(data + CODE_AT))
        return false;
    uint32_t body_size = load32(data + BODY_LENGTH_AT), name_size = load32(data + BODY_AT);
    if (body_size > size - BODY_AT || body_size < LENGTH_SIZE || !name_size || name_size > body_size - LENGTH_SIZE)
        return false;
    size_t name_end = NAME_AT + name_size, end = BODY_AT + body_size;
    /* No credential, or an empty one. */
    if (size != end && !(size == end + CREDENTIAL_SIZE && !load32(data + end)))
        return false;
    request->bytes = datagram;
    request->flags = load32(data + FLAGS_AT);
    request->name = (bytes_t){data + NAME_AT, name_size};
    request->lists = (bytes_t){data + name_end, end - name_end};
    request->digest = (bytes_t){data + ENVELOPE_SIZE, end - ENVELOPE_SIZE};
    return true;
}

/* What a request selects (§9.3 of the protocol). */
typedef struct {
    const uint8_t *indexes;
    size_t index_count;
    bytes_t types[MAX_SELECTED];
    size_t type_count;
} selection_t;

/* A count of items, each of at least four bytes; never more than fit. */
static bool read_count(cursor_t *lists, size_t *count)
{
    bytes_t number;

    if (!read_bytes(lists, LENGTH_SIZE, &number))
        return false;
    *count = load32(number.data);
    return *count <= bytes_left(lists) / LENGTH_SIZE;
}

static bool read_selection(bytes_t lists, selection_t *selection)
{
    cursor_t cursor = {lists.data, lists.data + lists.size};
    bytes_t part;

    if (!read_count(&cursor, &selection->index_count))
        return false;
    selection->indexes = cursor.at;
    cursor.at += selection->index_count * VALUE_INDEX_SIZE;
    if (!read_count(&cursor, &selection->type_count) || selection->type_count > MAX_SELECTED)
        return false;
    for (size_t i = 0; i < selection->type_count; i++)
        if (!read_bytes(&cursor, LENGTH_SIZE, &part) ||
            !read_bytes(&cursor, load32(part.data), &selection->types[i]) || !is_utf8(selection->types[i]))
            return false;
    return true;
}

static bool selects_all(const selection_t *selection) { return !selection->index_count && !selection->type_count; }

static bool selects_index(const selection_t *selection, const uint8_t *index)
{
    for (size_t i = 0; i < selection->index_count; i++)
        if (!memcmp(selection->indexes + i * VALUE_INDEX_SIZE, index, VALUE_INDEX_SIZE))
            return true;
    return false;
}

/* A type, or with a dot at its end the type and all below it. */
static bool selects_type(bytes_t query, bytes_t type)
{
    if (!query.size || query.data[query.size - 1] != '.')
        return is_equal_folded(query, type);
    if (type.size >= query.size)
        return is_equal_folded(query, (bytes_t){type.data, query.size});
    return is_equal_folded((bytes_t){query.data, query.size - 1}, type);
}

/* The type of a value, which has at least VALUE_TYPE_AT bytes. */
static bytes_t value_type(bytes_t value)
{
    uint32_t length = load32(value.data + VALUE_TYPE_LENGTH_AT);
    size_t left = value.size - VALUE_TYPE_AT;

    return (bytes_t){value.data + VALUE_TYPE_AT, length < left ? length : left};
}

static bool selects_value(const selection_t *selection, bytes_t value)
{
    if (selects_index(selection, value.data))
        return true;
    bytes_t type = value_type(value);
    for (size_t i = 0; i < selection->type_count; i++)
        if (selects_type(selection->types[i], type))
            return true;
    return false;
}

/* Responses */

typedef struct {
    uint8_t *at, *end;
    bool is_full;
} writer_t;

static void write_bytes(writer_t *writer, const void *data, size_t size)
{
    if (size > (size_t)(writer->end - writer->at))
        writer->is_full = true;
    else if (size)
        memcpy(writer->at, data, size), writer->at += size;
}

static void write32(writer_t *writer, uint32_t number)
{
    uint8_t bytes[LENGTH_SIZE];

    store32(bytes, number);
    write_bytes(writer, bytes, sizeof bytes);
}

static void write_text(writer_t *writer, bytes_t text)
{
    write32(writer, (uint32_t)text.size);
    write_bytes(writer, text.data, text.size);
}

/* The digest of the request, if the version has one (§2.5). */
static void write_digest(writer_t *writer, const request_t *request)
{
    uint8_t digest[1 + SHA256_SIZE];
    bool is_sha256 = request->minor >= SHA256_SINCE;

    digest[0] = is_sha256 ? DIGEST_SHA256 : DIGEST_SHA1;
    if (is_sha256)
        sha256(request->digest.data, request->digest.size, digest + 1);
    else
        sha1(request->digest.data, request->digest.size, digest + 1);
    write_bytes(writer, digest, 1 + (is_sha256 ? SHA256_SIZE : SHA1_SIZE));
}

/* Envelope and header before a body that is complete; the credential after it. Returns the size, 0 if it is too long. */
static size_t finish_response(writer_t *writer, uint8_t *out, const request_t *request, uint32_t code, uint32_t flags,
                              uint16_t serial, uint8_t hops, uint32_t now)
{
    size_t body_size = (size_t)(writer->at - out) - BODY_AT;

    write32(writer, 0);
    if (writer->is_full)
        return 0;
    memset(out, 0, BODY_AT);
    out[0] = MAJOR, out[1] = request->minor, out[2] = MAJOR, out[3] = MINOR;
    memcpy(out + REQUEST_ID_AT, request->bytes.data + REQUEST_ID_AT, 4);
    store32(out + LENGTH_AT, (uint32_t)(HEADER_SIZE + body_size + CREDENTIAL_SIZE));
    store32(out + OPCODE_AT, OP_RESOLUTION);
    store32(out + CODE_AT, code);
    store32(out + FLAGS_AT, flags);
    out[SERIAL_AT] = (uint8_t)(serial >> 8), out[SERIAL_AT + 1] = (uint8_t)serial;
    out[HOPS_AT] = hops;
    store32(out + EXPIRES_AT, now + MESSAGE_LIFETIME);
    store32(out + BODY_LENGTH_AT, (uint32_t)body_size);
    return (size_t)(writer->at - out);
}

/* Resolution */

typedef struct {
    const resolution_settings_t *settings;
    lookup_fn lookup;
    void *view;
    const request_t *request;
    selection_t selection;
    bytes_t name, prefix, suffix; /* the name to look up */
    bool is_prefix_handle;
    writer_t *writer;
} resolution_t;

enum { LEFT_TO_PYTHON = 0 }; /* instead of a response code */

/* Names up to the length of a packet, with the prefix of prefixes before them. */
typedef uint8_t name_buffer_t[MAX_PACKET + 8];

static bool split_name(resolution_t *resolution, name_buffer_t buffer)
{
    bytes_t name = resolution->request->name;
    const uint8_t *slash = memchr(name.data, '/', name.size);

    if (slash == NULL) {
        size_t before = PREFIX_OF_PREFIXES.size + 1;
        memcpy(buffer, "0.NA/", before);
        memcpy(buffer + before, name.data, name.size);
        name = (bytes_t){buffer, before + name.size};
        slash = buffer + PREFIX_OF_PREFIXES.size;
    }
    size_t prefix_size = (size_t)(slash - name.data);
    resolution->name = name;
    resolution->prefix = (bytes_t){name.data, prefix_size};
    resolution->suffix = (bytes_t){slash + 1, name.size - prefix_size - 1};
    return resolution->prefix.size && resolution->suffix.size && is_utf8(name);
}

/* Refuse names that the view does not have. */
static bool check_name(resolution_t *resolution)
{
    bytes_t suffix = resolution->suffix;
    size_t dots = 0;

    if (is_equal_folded(resolution->prefix, SITE_PREFIX))
        return false;
    resolution->is_prefix_handle = is_equal_folded(resolution->prefix, PREFIX_OF_PREFIXES);
    if (!resolution->is_prefix_handle)
        return true;
    for (size_t i = 0; i < suffix.size; i++)
        dots += suffix.data[i] == '.';
    return dots <= MAX_LEVELS && !has_byte(suffix, '/');
}

/* 1 if there is something under the key of a name, 0 if there is nothing, -1 if only Python can tell. */
static int look_up(const resolution_t *resolution, store_t store, bytes_t name, bytes_t *found)
{
    uint8_t key[MAX_KEY];

    if (!name.size || name.size > MAX_KEY)
        return -1;
    for (size_t i = 0; i < name.size; i++)
        key[i] = fold_byte(name.data[i]);
    return resolution->lookup(resolution->view, store, (bytes_t){key, name.size}, found);
}

static int find_prefix(const resolution_t *resolution, bytes_t name, prefix_item_t *prefix)
{
    bytes_t item;
    int found = look_up(resolution, STORE_PREFIXES, name, &item);

    return found == 1 && !read_prefix_item(item, prefix) ? -1 : found;
}

/* Shorten a prefix to the one that it is derived from; false if there is none. */
static bool to_ancestor(bytes_t *prefix)
{
    while (prefix->size && prefix->data[prefix->size - 1] != '.')
        prefix->size--;
    if (prefix->size)
        prefix->size--;
    return prefix->size > 0;
}

typedef bool (*prefix_test_fn)(const prefix_item_t *prefix);

static bool is_marker(const prefix_item_t *prefix) { return prefix->head & PREFIX_MARKER; }

static bool has_templates(const prefix_item_t *prefix) { return prefix->head & PREFIX_TEMPLATES; }

static bool has_referrals(const prefix_item_t *prefix) { return prefix->referrals.count > 0; }

/* Find the nearest ancestor that passes a test: 1, 0 or -1 as in `look_up`. */
static int find_ancestor(const resolution_t *resolution, bytes_t prefix, prefix_test_fn test, prefix_item_t *found)
{
    for (int level = 0; level < MAX_LEVELS && to_ancestor(&prefix); level++) {
        int known = find_prefix(resolution, prefix, found);
        if (known < 0)
            return -1;
        if (known && test(found))
            return 1;
    }
    return 0;
}

/* Whether names of a prefix are case-sensitive; -1 if only Python can tell. */
static int is_sensitive(const resolution_t *resolution, const prefix_item_t *prefix)
{
    const resolution_settings_t *settings = resolution->settings;
    bool has_rule = case_rule(prefix) != CASE_NONE, is_cordra;

    if (!has_rule && prefix->scheme.size)
        return -1; /* the scheme decides */
    is_cordra = has_rule ? is_equal(prefix->scheme, (bytes_t){(const uint8_t *)"cordra", 6}) : settings->default_cordra;
    if (is_cordra && (has_byte(resolution->suffix, '?') || has_byte(resolution->suffix, '#')))
        return -1; /* parameters, which are not part of the handle */
    return has_rule ? case_rule(prefix) == CASE_SENSITIVE : settings->default_sensitive;
}

/* Whether a case-sensitive name is that of the item: the case of the prefix is ignored (view, "Which item"). */
static bool is_exact_name(const resolution_t *resolution, const handle_item_t *handle)
{
    size_t before = resolution->prefix.size;
    bytes_t tail = {resolution->name.data + before, resolution->name.size - before};

    if (handle->head & HANDLE_SPELLED)
        return handle->spelling.size >= before &&
               is_equal((bytes_t){handle->spelling.data + before, handle->spelling.size - before}, tail);
    for (size_t i = 0; i < tail.size; i++)
        if (fold_byte(tail.data[i]) != tail.data[i])
            return false;
    return true;
}

static uint32_t write_no_values(resolution_t *resolution, uint32_t code)
{
    write32(resolution->writer, 0);
    return code;
}

static void write_found(resolution_t *resolution, uint32_t count, bytes_t values)
{
    write_text(resolution->writer, resolution->request->name);
    write32(resolution->writer, count);
    write_bytes(resolution->writer, values.data, values.size);
}

/* Write the selected values of a record. */
static uint32_t write_selected(resolution_t *resolution, const run_t *run)
{
    writer_t *writer = resolution->writer;
    writer_t start = *writer, counter;
    cursor_t lengths = {run->lengths.data, run->lengths.data + run->lengths.size};
    cursor_t values = {run->values.data, run->values.data + run->values.size};
    uint32_t count = 0;

    if (run->count > MAX_SEARCHED_VALUES)
        return LEFT_TO_PYTHON;
    write_text(writer, resolution->request->name);
    counter = *writer;
    write32(writer, 0);
    for (uint64_t i = 0; i < run->count; i++) {
        uint64_t length;
        bytes_t value;
        if (!read_number(&lengths, &length) || !read_bytes(&values, length, &value) || value.size < VALUE_TYPE_AT)
            return LEFT_TO_PYTHON;
        if (selects_value(&resolution->selection, value))
            write_bytes(writer, value.data, value.size), count++;
    }
    if (count) {
        write32(&counter, count);
        return CODE_SUCCESS;
    }
    *writer = start;
    return write_no_values(resolution, CODE_NO_VALUES);
}

static uint32_t write_record(resolution_t *resolution, bytes_t items, bool sensitive)
{
    const request_t *request = resolution->request;
    bool public_only = request->flags & FLAG_PUBLIC_ONLY;
    handle_item_t handle;

    if (!read_handle_item(items, &handle) || !!(handle.head & HANDLE_EXACT) != sensitive)
        return LEFT_TO_PYTHON;
    if (sensitive && !is_exact_name(resolution, &handle))
        return CODE_NOT_FOUND;
    unsigned state = handle.head & STATE_BITS;
    if (state == STATE_RESERVED || state == STATE_UNPUBLISHED)
        return public_only ? CODE_NOT_FOUND : LEFT_TO_PYTHON;
    if ((state != STATE_NORMAL && state != STATE_TOMBSTONE) || (handle.head & HANDLE_PRIVATE && !public_only))
        return LEFT_TO_PYTHON;
    if (!selects_all(&resolution->selection))
        return write_selected(resolution, &handle.values);
    if (!handle.values.count)
        return write_no_values(resolution, CODE_NO_VALUES);
    write_found(resolution, (uint32_t)handle.values.count, handle.values.values);
    return CODE_SUCCESS;
}

static uint32_t write_refusal(resolution_t *resolution)
{
    write_text(resolution->writer, (bytes_t){(const uint8_t *)WRONG_PREFIX, sizeof WRONG_PREFIX - 1});
    return CODE_NOT_RESPONSIBLE;
}

/* The values of the nearest ancestor that delegates a derived prefix; CODE_NOT_FOUND if there is none. */
static uint32_t write_referral(resolution_t *resolution)
{
    prefix_item_t ancestor;
    int found = find_ancestor(resolution, resolution->suffix, has_referrals, &ancestor);

    if (found <= 0)
        return found ? LEFT_TO_PYTHON : CODE_NOT_FOUND;
    if (resolution->request->minor < REFERRALS_SINCE)
        return LEFT_TO_PYTHON;
    write32(resolution->writer, 0); /* no handle */
    write32(resolution->writer, (uint32_t)ancestor.referrals.count);
    write_bytes(resolution->writer, ancestor.referrals.values.data, ancestor.referrals.values.size);
    return CODE_REFERRAL;
}

/* A handle that the view does not have, unless a template may create it. */
static uint32_t write_not_found(resolution_t *resolution, const prefix_item_t *prefix)
{
    prefix_item_t ancestor;

    if (has_templates(prefix) || resolution->settings->templates ||
        find_ancestor(resolution, resolution->prefix, has_templates, &ancestor))
        return LEFT_TO_PYTHON;
    return write_no_values(resolution, CODE_NOT_FOUND);
}

/* Write the body of the response and return its code. */
static uint32_t write_body(resolution_t *resolution)
{
    prefix_item_t prefix = {0}, ancestor;
    bytes_t items;
    uint32_t code = CODE_NOT_FOUND;
    int is_known = find_prefix(resolution, resolution->prefix, &prefix);
    int is_stored = look_up(resolution, STORE_HANDLES, resolution->name, &items);
    int sensitive = 0;

    if (is_known < 0 || is_stored < 0)
        return LEFT_TO_PYTHON;
    if (!(prefix.head & PREFIX_HOSTED)) {
        int marked = resolution->is_prefix_handle
                         ? find_ancestor(resolution, resolution->suffix, is_marker, &ancestor)
                         : 0;
        if (marked <= 0)
            return marked ? LEFT_TO_PYTHON : write_refusal(resolution);
    }
    if (is_known && !resolution->is_prefix_handle)
        sensitive = is_sensitive(resolution, &prefix);
    if (sensitive < 0)
        return LEFT_TO_PYTHON;
    if (is_stored)
        code = write_record(resolution, items, sensitive);
    else if (resolution->is_prefix_handle && !(resolution->request->flags & FLAG_DO_NOT_REFER))
        code = write_referral(resolution);
    return code == CODE_NOT_FOUND ? write_not_found(resolution, &prefix) : code;
}

bool resolve_request(const resolution_settings_t *settings, lookup_fn lookup, void *view, bytes_t datagram,
                     uint32_t now, uint8_t out[MAX_RESPONSE], answer_t *answer)
{
    request_t request;
    name_buffer_t buffer;
    writer_t writer = {out + BODY_AT, out + MAX_RESPONSE, false};
    resolution_t resolution;

    resolution.settings = settings; /* the rest is filled in below: the selection is large */
    resolution.lookup = lookup;
    resolution.view = view;
    resolution.request = &request;
    resolution.writer = &writer;
    resolution.is_prefix_handle = false;

    if (!read_request(datagram, &request) ||
        request.flags & (UNKNOWN_FLAGS | FLAG_CERTIFY | FLAG_ENCRYPT) ||
        !split_name(&resolution, buffer) || !check_name(&resolution) || !read_selection(request.lists, &resolution.selection))
        return false;
    uint32_t echoed = request.minor >= DIGEST_SINCE ? ECHOED_FLAGS : ECHOED_FLAGS & ~FLAG_REQUEST_DIGEST;
    uint32_t flags = (request.flags & echoed) | FLAG_RECURSIVE | (settings->is_primary ? FLAG_AUTHORITATIVE : 0);
    if (flags & FLAG_REQUEST_DIGEST)
        write_digest(&writer, &request);
    answer->code = write_body(&resolution);
    if (answer->code == LEFT_TO_PYTHON)
        return false;
    answer->size = finish_response(&writer, out, &request, answer->code, flags, (uint16_t)settings->serial,
                                   datagram.data[HOPS_AT], now);
    answer->requested = request.name;
    /* The prefix of prefixes is not in the request. */
    answer->prefix = resolution.name.data == buffer ? PREFIX_OF_PREFIXES : resolution.prefix;
    return answer->size > 0;
}

size_t refuse_request(bytes_t datagram, bytes_t text, uint32_t now, uint8_t out[MAX_PACKET])
{
    request_t request;
    writer_t writer = {out + BODY_AT, out + MAX_PACKET, false};
    uint32_t flags;

    if (!read_request(datagram, &request))
        return 0;
    flags = (request.flags & REFUSAL_FLAGS) | FLAG_RECURSIVE;
    if (request.minor < DIGEST_SINCE)
        flags &= ~FLAG_REQUEST_DIGEST;
    if (flags & FLAG_REQUEST_DIGEST)
        write_digest(&writer, &request);
    size_t used = (size_t)(writer.at - out) + 2 * LENGTH_SIZE;
    if (datagram.size < used + text.size)
        text.size = 0;
    write_text(&writer, text);
    return finish_response(&writer, out, &request, CODE_ERROR, flags, UNKNOWN_SERIAL, 0, now);
}
