/* Entries of queues and of the key index, from entries of the log. */
#include "core.h"

enum { SYS_FLAGS_QUEUED = 0x73B /* plain, wide hosts, committed: flags that do not change the queue entry */ };

/* Entry of the log in the dispatcher's form. */
typedef struct {
    long long size, queue_id, queue_offset, physical, sys_flag;
    PyObject *stored, *topic, *properties;
} Entry;

static int read_entry(PyObject *tuple, Entry *entry) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 9 || !PyBytes_Check(PyTuple_GET_ITEM(tuple, 7)) ||
        !PyBytes_Check(PyTuple_GET_ITEM(tuple, 8))) {
        PyErr_SetString(PyExc_TypeError, "an entry is a tuple of nine");
        return 0;
    }
    entry->size = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, 0));
    entry->queue_id = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, 2));
    entry->queue_offset = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, 3));
    entry->physical = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, 4));
    entry->sys_flag = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, 5));
    entry->stored = PyTuple_GET_ITEM(tuple, 6);
    entry->topic = PyTuple_GET_ITEM(tuple, 7);
    entry->properties = PyTuple_GET_ITEM(tuple, 8);
    return !PyErr_Occurred();
}

static int same_bytes(PyObject *a, PyObject *b) {
    return a == b || (PyBytes_GET_SIZE(a) == PyBytes_GET_SIZE(b) &&
                      memcmp(PyBytes_AS_STRING(a), PyBytes_AS_STRING(b), (size_t)PyBytes_GET_SIZE(a)) == 0);
}

PyObject *queue_runs(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 2 || !PyList_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "queue_runs takes a list of entries and a tuple of words");
        return NULL;
    }
    typedef struct {
        PyObject *topic;
        long long queue_id, first, next;
        Buffer packed;
    } Group;
    PyObject *entries = args[0], *stops = args[1], *result = NULL;
    if (!are_words(stops, "queue_runs")) return NULL;
    Group groups[QUEUES_MAX];
    int group_count = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++) {
        Entry entry;
        if (!read_entry(PyList_GET_ITEM(entries, i), &entry)) goto done;
        Group *group = NULL;
        for (int k = 0; k < group_count && !group; k++)
            if (groups[k].queue_id == entry.queue_id && same_bytes(groups[k].topic, entry.topic)) group = &groups[k];
        if (entry.sys_flag & ~(long long)SYS_FLAGS_QUEUED || entry.size < 0 || entry.size > INT32_MAX ||
            (!group && group_count == QUEUES_MAX) || (group && group->next != entry.queue_offset) ||
            has_any(PyBytes_AS_STRING(entry.properties), PyBytes_GET_SIZE(entry.properties), stops)) {
            result = Py_NewRef(Py_None); /* needs special treatment */
            goto done;
        }
        if (!group) {
            group = &groups[group_count++];
            *group = (Group){Py_NewRef(entry.topic), entry.queue_id, entry.queue_offset, entry.queue_offset, {0}};
        }
        Properties found;
        read_properties(PyBytes_AS_STRING(entry.properties), PyBytes_GET_SIZE(entry.properties), &found);
        uint32_t code = 0;
        if (found.tags.at && !java_hash_of(found.tags.at, found.tags.length, &code)) goto done;
        char *to = reserve(&group->packed, QUEUE_ENTRY_BYTES);
        if (!to) goto done;
        to = put64(to, (uint64_t)entry.physical);
        to = put32(to, (uint32_t)entry.size);
        put64(to, (uint64_t)(int64_t)(int32_t)code);
        group->packed.length += QUEUE_ENTRY_BYTES;
        group->next++;
    }
    PyObject *runs = PyList_New(0);
    if (!runs) goto done;
    for (int k = 0; k < group_count; k++) {
        PyObject *run = Py_BuildValue("(OLLy#)", groups[k].topic, groups[k].queue_id, groups[k].first,
                                      groups[k].packed.data, groups[k].packed.length);
        int bad = !run || PyList_Append(runs, run) < 0;
        Py_XDECREF(run);
        if (bad) {
            Py_DECREF(runs);
            goto done;
        }
    }
    result = runs;
done:
    for (int k = 0; k < group_count; k++) {
        Py_DECREF(groups[k].topic);
        PyMem_Free(groups[k].packed.data);
    }
    return result;
}

static int put_key(PyObject *wanted, uint32_t seed, const char *key, Py_ssize_t length, const Entry *entry) {
    if (!java_hash_of(key, length, &seed)) return 0;
    int32_t code = (int32_t)seed;
    long stored = code == INT32_MIN ? 0 : code < 0 ? -(long)code : code;
    PyObject *item = Py_BuildValue("(lLO)", stored, entry->physical, entry->stored);
    int good = item && PyList_Append(wanted, item) == 0;
    Py_XDECREF(item);
    return good;
}

PyObject *key_items(PyObject *module, PyObject *entries) {
    if (!PyList_Check(entries)) {
        PyErr_SetString(PyExc_TypeError, "key_items takes a list of entries");
        return NULL;
    }
    PyObject *wanted = PyList_New(0), *topic = NULL;
    if (!wanted) return NULL;
    uint32_t seed = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++) {
        Entry entry;
        if (!read_entry(PyList_GET_ITEM(entries, i), &entry)) goto failed;
        if ((entry.sys_flag & 0xC) == 0xC) continue; /* rolled back */
        Properties found;
        read_properties(PyBytes_AS_STRING(entry.properties), PyBytes_GET_SIZE(entry.properties), &found);
        if (!found.unique_key.at && !found.keys.at) continue;
        if (!topic || !same_bytes(topic, entry.topic)) {
            Py_XSETREF(topic, Py_NewRef(entry.topic));
            seed = 0;
            if (!java_hash_of(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), &seed)) goto failed;
            seed = seed * 31 + '#';
        }
        if (found.unique_key.at && !put_key(wanted, seed, found.unique_key.at, found.unique_key.length, &entry))
            goto failed;
        const char *at = found.keys.at, *end = at + found.keys.length;
        while (at && at < end) {
            const char *stop = memchr(at, ' ', (size_t)(end - at));
            if (!stop) stop = end;
            if (stop > at && !put_key(wanted, seed, at, stop - at, &entry)) goto failed;
            at = stop + 1;
        }
    }
    Py_XDECREF(topic);
    return wanted;
failed:
    Py_XDECREF(topic);
    Py_DECREF(wanted);
    return NULL;
}

static int64_t slot_of(int64_t hash, int64_t slot_count) {
    int64_t slot = hash % slot_count;
    return slot < 0 ? slot + slot_count : slot;
}

PyObject *index_entries(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 4 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "index_entries takes a list of items, a table and two numbers");
        return NULL;
    }
    PyObject *items = args[0], *pages = NULL, *packed = NULL, *result = NULL;
    long long count = PyLong_AsLongLong(args[2]), begin_ms = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t number = PyList_GET_SIZE(items);
    Py_buffer table;
    if (PyObject_GetBuffer(args[1], &table, PyBUF_WRITABLE) < 0) return NULL;
    int32_t *slots = table.buf;
    int64_t slot_count = table.len / 4;
    Py_ssize_t used = 0;
    long long last_page = -1;
    if (!slot_count || count < 0 || count > INT32_MAX - number) {
        PyErr_SetString(PyExc_ValueError, "index_entries: no slots, or more entries than an index file can have");
        goto done;
    }
    packed = PyBytes_FromStringAndSize(NULL, number * 20);
    pages = PySet_New(NULL);
    if (!packed || !pages) goto done;
    char *to = PyBytes_AS_STRING(packed);
    /* First everything that may fail. */
    for (Py_ssize_t i = 0; i < number; i++, to += 20) {
        PyObject *item = PyList_GET_ITEM(items, i);
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 3) {
            PyErr_SetString(PyExc_TypeError, "index_entries: an item is a tuple of three numbers");
            goto done;
        }
        long long hash = PyLong_AsLongLong(PyTuple_GET_ITEM(item, 0));
        long long physical = PyLong_AsLongLong(PyTuple_GET_ITEM(item, 1));
        long long time_ms = PyLong_AsLongLong(PyTuple_GET_ITEM(item, 2));
        if (PyErr_Occurred()) goto done;
        if (hash < INT32_MIN || hash > INT32_MAX) {
            PyErr_SetString(PyExc_ValueError, "index_entries: a hash has 32 bits");
            goto done;
        }
        int64_t seconds = 0;
        if (begin_ms > 0 && time_ms > begin_ms) seconds = (int64_t)(((uint64_t)time_ms - (uint64_t)begin_ms) / 1000);
        if (seconds > INT32_MAX) seconds = INT32_MAX;
        put32(put64(put32(to, (uint32_t)hash), (uint64_t)physical), (uint32_t)seconds);
        /* See index_file.py: the table begins 40 bytes after the start of its first page. */
        long long page = (slot_of(hash, slot_count) + 10) >> 10;
        if (page != last_page) {
            PyObject *key = PyLong_FromLongLong(page);
            if (!key || PySet_Add(pages, key) < 0) {
                Py_XDECREF(key);
                goto done;
            }
            Py_DECREF(key);
            last_page = page;
        }
    }
    to = PyBytes_AS_STRING(packed);
    for (Py_ssize_t i = 0; i < number; i++, to += 20, count++) {
        int32_t *slot = &slots[slot_of((int32_t)get32(to), slot_count)];
        int32_t previous = *slot;
        if (!previous) used++;
        else if (previous < 0 || previous >= count) previous = 0;
        put32(to + 16, (uint32_t)previous);
        *slot = (int32_t)count;
    }
    result = Py_BuildValue("(OnO)", packed, used, pages);
done:
    Py_XDECREF(packed);
    Py_XDECREF(pages);
    PyBuffer_Release(&table);
    return result;
}
