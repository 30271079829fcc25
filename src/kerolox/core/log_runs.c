/* Queue and index entries directly from a stretch of the log, without an object for each record. */
#include "core.h"

enum { FLAGS_QUEUED = 0x73B, GROUPS_FIRST = 64, KEY_BYTES = 20, SEAL_BYTES = 20, SEAL_LEFT = 6 };

static const char SEAL[] = "__CRC32#\x01";

/* Consecutive entries of one queue. */
typedef struct {
    const char *topic;
    Py_ssize_t topic_length;
    int32_t queue_id;
    int64_t first, next;
    Buffer packed;
} Group;

typedef struct {
    Group *all;
    Py_ssize_t count, room;
    Py_ssize_t *slots; /* number of a group plus one; 0: empty */
    size_t slot_count; /* a power of two */
} Groups;

static size_t place_of(const char *topic, Py_ssize_t length, int32_t queue_id) {
    size_t code = (size_t)(uint32_t)queue_id * 0x9E3779B1u;
    for (Py_ssize_t i = 0; i < length; i++) code = (code ^ (unsigned char)topic[i]) * 0x100000001B3ull;
    return code ^ code >> 29;
}

/* Makes room for more groups; returns 0 with MemoryError. */
static int grow(Groups *groups) {
    Py_ssize_t room = groups->room ? groups->room * 2 : GROUPS_FIRST;
    Group *all = PyMem_Realloc(groups->all, (size_t)room * sizeof(Group));
    if (all) groups->all = all;
    Py_ssize_t *slots = all ? PyMem_Calloc((size_t)room * 2, sizeof(Py_ssize_t)) : NULL;
    if (!slots) {
        PyErr_NoMemory();
        return 0;
    }
    PyMem_Free(groups->slots);
    groups->slots = slots;
    groups->slot_count = (size_t)room * 2;
    groups->room = room;
    for (Py_ssize_t i = 0; i < groups->count; i++) {
        size_t at = place_of(all[i].topic, all[i].topic_length, all[i].queue_id);
        while (slots[at & (groups->slot_count - 1)]) at++;
        slots[at & (groups->slot_count - 1)] = i + 1;
    }
    return 1;
}

/* Returns the group of a queue, created if necessary; NULL with MemoryError. */
static Group *group_of(Groups *groups, const char *topic, Py_ssize_t length, int32_t queue_id, int64_t first) {
    if (groups->count == groups->room && !grow(groups)) return NULL;
    size_t mask = groups->slot_count - 1, at = place_of(topic, length, queue_id);
    for (; groups->slots[at & mask]; at++) {
        Group *group = &groups->all[groups->slots[at & mask] - 1];
        if (group->queue_id == queue_id && group->topic_length == length && !memcmp(group->topic, topic, (size_t)length))
            return group;
    }
    groups->slots[at & mask] = ++groups->count;
    Group *group = &groups->all[groups->count - 1];
    *group = (Group){topic, length, queue_id, first, first, {0}};
    return group;
}

/* Returns true if the end of the properties is, or may once have been, a CRC of the whole record. */
static int may_be_sealed(const char *properties, const char *end) {
    const char *from = end - properties > SEAL_BYTES ? end - SEAL_BYTES : properties;
    if (memchr(from, 0, (size_t)(end - from))) return 1;
    int same = 0;
    for (int i = 0; i < 9 && from + i < end; i++) same += from[i] == SEAL[i];
    return same >= SEAL_LEFT;
}

static int add_key(Buffer *keys, uint32_t seed, const char *key, Py_ssize_t length, int64_t physical, int64_t stored) {
    if (!java_hash_of(key, length, &seed)) return 0;
    char *to = reserve(keys, KEY_BYTES);
    if (!to) return 0;
    uint32_t code = seed == 0x80000000u ? 0 : seed > 0x80000000u ? 0 - seed : seed;
    put64(put64(put32(to, code), (uint64_t)physical), (uint64_t)stored);
    keys->length += KEY_BYTES;
    return 1;
}

PyObject *log_runs(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 8 || !PyTuple_Check(args[5]) || !PyTuple_Check(args[6])) {
        PyErr_SetString(PyExc_TypeError, "log_runs takes bytes, a beginning, two ends, a place in the log, words, topics and whether tags are keys");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), before = PyLong_AsSsize_t(args[2]), end = PyLong_AsSsize_t(args[3]);
    long long lies_at = PyLong_AsLongLong(args[4]);
    int tags_too = PyObject_IsTrue(args[7]);
    if (PyErr_Occurred()) return NULL;
    PyObject *stops = args[5], *topics = args[6], *result = NULL;
    if (!are_words(stops, "log_runs") || !are_words(topics, "log_runs")) return NULL;
    Py_buffer log;
    if (PyObject_GetBuffer(args[0], &log, PyBUF_SIMPLE) < 0) return NULL;
    Groups groups = {0};
    Buffer keys = {0};
    Py_ssize_t records = 0;
    int64_t last_ms = 0;
    const char *hashed = NULL; /* topic whose hash is in seed */
    Py_ssize_t hashed_length = 0;
    uint32_t seed = 0;
    if (at < 0 || end > log.len) {
        PyErr_SetString(PyExc_ValueError, "log_runs: not within the bytes");
        goto done;
    }
    while (at < before && end - at >= RECORD_MIN) {
        const char *record = (const char *)log.buf + at;
        int32_t size = (int32_t)get32(record), sys_flag = (int32_t)get32(record + 36);
        if (get32(record + 4) != 0xDAA320A7 || sys_flag & ~FLAGS_QUEUED || size < RECORD_MIN || size > end - at) break;
        if (get64(record + 28) != lies_at + at) break;
        Py_ssize_t born_length = sys_flag & BORN_WIDE ? 20 : 8, store_length = sys_flag & STORE_WIDE ? 20 : 8;
        const char *stop = record + size, *stored_at = record + 48 + born_length;
        const char *body = stored_at + 8 + store_length + 16;
        if (stop - body < 3) break;
        int32_t body_length = (int32_t)get32(body - 4);
        if (body_length < 0 || body_length > stop - body - 3) break;
        const char *topic = body + body_length + 1;
        Py_ssize_t topic_length = (unsigned char)topic[-1];
        if (topic_length > 127 || topic_length > stop - topic - 2) break;
        const char *properties = topic + topic_length + 2;
        Py_ssize_t length = stop - properties;
        if (length > PROPERTIES_MAX || (Py_ssize_t)get16(properties - 2) != length) break;
        if (may_be_sealed(properties, stop) || has_any(properties, length, stops)) break;
        if (body_length && (crc32_of(body, body_length) & 0x7FFFFFFFu) != get32(record + 8)) break;
        int special = 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(topics); i++) {
            PyObject *name = PyTuple_GET_ITEM(topics, i);
            special |= PyBytes_GET_SIZE(name) == topic_length && !memcmp(PyBytes_AS_STRING(name), topic, (size_t)topic_length);
        }
        if (special) break;
        int64_t physical = lies_at + at, offset = get64(record + 20), stored = get64(stored_at);
        Group *group = group_of(&groups, topic, topic_length, (int32_t)get32(record + 12), offset);
        if (!group) goto done;
        if (group->next != offset) break;
        Properties found;
        read_properties(properties, length, &found);
        uint32_t code = 0;
        if (found.tags.at && !java_hash_of(found.tags.at, found.tags.length, &code)) goto done;
        char *to = reserve(&group->packed, QUEUE_ENTRY_BYTES);
        if (!to) goto done;
        put64(put32(put64(to, (uint64_t)physical), (uint32_t)size), (uint64_t)(int64_t)(int32_t)code);
        group->packed.length += QUEUE_ENTRY_BYTES;
        group->next++;
        if (found.unique_key.at || found.keys.at || (tags_too && found.tags.at)) {
            if (!hashed || hashed_length != topic_length || memcmp(hashed, topic, (size_t)topic_length)) {
                hashed = topic;
                hashed_length = topic_length;
                seed = 0;
                if (!java_hash_of(topic, topic_length, &seed)) goto done;
                seed = seed * 31 + '#';
            }
            if (found.unique_key.at &&
                !add_key(&keys, seed, found.unique_key.at, found.unique_key.length, physical, stored))
                goto done;
            const char *key = found.keys.at, *keys_end = key + found.keys.length;
            while (key && key < keys_end) {
                const char *space = memchr(key, ' ', (size_t)(keys_end - key));
                if (!space) space = keys_end;
                if (space > key && !add_key(&keys, seed, key, space - key, physical, stored)) goto done;
                key = space + 1;
            }
            if (tags_too && found.tags.at &&
                !add_key(&keys, (seed * 31 + 'T') * 31 + '#', found.tags.at, found.tags.length, physical, stored))
                goto done;
        }
        if (stored > last_ms) last_ms = stored;
        records++;
        at += size;
    }
    PyObject *runs = PyList_New(0);
    for (Py_ssize_t i = 0; runs && i < groups.count; i++) {
        Group *group = &groups.all[i];
        if (!group->packed.length) continue; /* its first record needs special treatment */
        PyObject *run = Py_BuildValue("(y#iLy#)", group->topic, group->topic_length, (int)group->queue_id,
                                      (long long)group->first, group->packed.data, group->packed.length);
        if (!run || PyList_Append(runs, run) < 0) Py_CLEAR(runs);
        Py_XDECREF(run);
    }
    if (runs)
        result = Py_BuildValue("(Ny#nnL)", runs, keys.data ? keys.data : "", keys.length, at, records, (long long)last_ms);
done:
    for (Py_ssize_t i = 0; i < groups.count; i++) PyMem_Free(groups.all[i].packed.data);
    PyMem_Free(groups.all);
    PyMem_Free(groups.slots);
    PyMem_Free(keys.data);
    PyBuffer_Release(&log);
    return result;
}

PyObject *index_block(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 5 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "index_block takes bytes, a table and three numbers");
        return NULL;
    }
    long long count = PyLong_AsLongLong(args[2]), begin_ms = PyLong_AsLongLong(args[3]);
    long long first_begin_ms = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t number = PyBytes_GET_SIZE(args[0]) / KEY_BYTES;
    Py_buffer table;
    if (PyObject_GetBuffer(args[1], &table, PyBUF_WRITABLE) < 0) return NULL;
    int32_t *slots = table.buf;
    int64_t slot_count = table.len / 4;
    PyObject *packed = NULL, *result = NULL;
    Py_ssize_t used = 0;
    if (!slot_count || count < 1 || count > INT32_MAX - number || PyBytes_GET_SIZE(args[0]) % KEY_BYTES) {
        PyErr_SetString(PyExc_ValueError, "index_block: no slots, no whole items, or more than an index file can have");
        goto done;
    }
    packed = PyBytes_FromStringAndSize(NULL, number * 20);
    if (!packed) goto done;
    const char *from = PyBytes_AS_STRING(args[0]);
    char *to = PyBytes_AS_STRING(packed);
    for (Py_ssize_t i = 0; i < number; i++, from += KEY_BYTES, count++) {
        int32_t hash = (int32_t)get32(from);
        int64_t time_ms = get64(from + 12), begin = i ? begin_ms : first_begin_ms, seconds = 0;
        if (begin > 0 && time_ms > begin) seconds = (int64_t)(((uint64_t)time_ms - (uint64_t)begin) / 1000);
        if (seconds > INT32_MAX) seconds = INT32_MAX;
        int64_t slot = hash % slot_count;
        if (slot < 0) slot += slot_count;
        int32_t previous = slots[slot];
        if (!previous) used++;
        else if (previous < 0 || previous >= count) previous = 0;
        memcpy(to, from, 12);
        to = put32(put32(to + 12, (uint32_t)seconds), (uint32_t)previous);
        slots[slot] = (int32_t)count;
    }
    result = Py_BuildValue("(On)", packed, used);
done:
    Py_XDECREF(packed);
    PyBuffer_Release(&table);
    return result;
}
