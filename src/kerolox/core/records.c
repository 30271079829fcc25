/* Records: messages of an answer, entries of a log, starts of records, faults of records, and properties
 * of one record. */
#include "core.h"

int read_parts(const char *block, Py_ssize_t length, int64_t place, Record *record) {
    if (place < 0 || place > length - RECORD_MIN) return 0;
    const char *at = block + place;
    int32_t size = (int32_t)get32(at), sys_flag = (int32_t)get32(at + 36);
    uint32_t magic = get32(at + 4);
    int wide_topic = magic == 0xDAA320AB;
    if (size < RECORD_MIN || size > length - place || (!wide_topic && magic != 0xDAA320A7)) return 0;
    record->at = at;
    record->sys_flag = sys_flag;
    record->born_length = sys_flag & BORN_WIDE ? 20 : 8;
    record->store_length = sys_flag & STORE_WIDE ? 20 : 8;
    const char *end = at + size;
    record->born_host = at + 48;
    record->store_host = record->born_host + record->born_length + 8;
    record->rest = record->store_host + record->store_length;
    record->body = record->rest + 16;
    /* Other than the body: a topic length of one or two bytes, and a properties length of two. */
    if (end - record->body < 3 + wide_topic) return 0;
    record->body_length = (int32_t)get32(record->rest + 12);
    if (record->body_length < 0 || record->body_length > end - record->body - 3 - wide_topic) return 0;
    const char *topic = record->body + record->body_length;
    if ((unsigned char)*topic > 127) return 0;
    record->topic_length = wide_topic ? (Py_ssize_t)get16(topic) : (Py_ssize_t)(unsigned char)*topic;
    record->topic = topic + 1 + wide_topic;
    if (record->topic_length > end - record->topic - 2) return 0;
    record->packed = record->topic + record->topic_length + 2;
    record->packed_length = (Py_ssize_t)get16(record->packed - 2);
    return record->packed_length <= PROPERTIES_MAX && record->packed_length == end - record->packed;
}

enum { RECORD_ARGS = 17 };

/* Returns a bytes object with this content, the previous one if it is equal, because hosts and topics
 * rarely change. */
static int keep_bytes(PyObject **kept, const char *at, Py_ssize_t length) {
    if (*kept && PyBytes_GET_SIZE(*kept) == length && !memcmp(PyBytes_AS_STRING(*kept), at, (size_t)length)) return 0;
    PyObject *made = PyBytes_FromStringAndSize(at, length);
    if (!made) return -1;
    Py_XSETREF(*kept, made);
    return 1;
}

/* Values that all messages of an answer share. */
typedef struct {
    PyObject *topic_bytes, *topic, *born_host, *store_host;
} Shared;

/* Reads one record of at most `left` bytes. Returns 1 and a message, 0 if it is not a record, -1 with an
 * error. */
static int read_record(const char *at, Py_ssize_t left, PyObject *make, PyObject *broker, Shared *shared,
                       int32_t *size_found, int32_t *flags, PyObject **message) {
    Record record;
    if (!read_parts(at, left, 0, &record)) return 0;
    Py_ssize_t topic_length = record.topic_length;
    const char *topic = record.topic, *store = record.store_host, *rest = record.rest;
    int32_t sys_flag = record.sys_flag;

    int changed = keep_bytes(&shared->topic_bytes, topic, topic_length);
    if (changed < 0 || keep_bytes(&shared->born_host, record.born_host, record.born_length) < 0 ||
        keep_bytes(&shared->store_host, store, record.store_length) < 0) return -1;
    if (changed) {
        PyObject *text = PyUnicode_DecodeUTF8(topic, topic_length, "replace");
        if (!text) return -1;
        Py_XSETREF(shared->topic, text);
    }
    PyObject *args[RECORD_ARGS + 1] = {NULL};
    PyObject **values = args + 1; /* a free slot before them, as vectorcall requires */
    values[0] = shared->topic;
    values[1] = PyBytes_FromStringAndSize(record.body, record.body_length);
    values[2] = PyLong_FromLong((int32_t)get32(at + 12));
    values[3] = PyLong_FromLongLong(get64(at + 20));
    values[4] = PyLong_FromLongLong(get64(at + 28));
    values[5] = PyBytes_FromStringAndSize(record.packed, record.packed_length);
    values[6] = PyLong_FromLong((int32_t)get32(at + 16));
    values[7] = PyLong_FromLong(sys_flag);
    values[8] = PyLong_FromLongLong(get64(at + 40));
    values[9] = shared->born_host;
    values[10] = PyLong_FromLongLong(get64(store - 8));
    values[11] = shared->store_host;
    values[12] = PyLong_FromLong((int32_t)get32(rest));
    values[13] = PyLong_FromLongLong(get64(rest + 4));
    values[14] = PyLong_FromLong((int32_t)get32(at + 8));
    values[15] = PyLong_FromLong((int32_t)get32(at));
    values[16] = broker;
    int complete = 1;
    for (int i = 0; i < RECORD_ARGS; i++) complete &= values[i] != NULL;
    *message = complete ? PyObject_Vectorcall(make, values, RECORD_ARGS | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL) : NULL;
    for (int i = 0; i < RECORD_ARGS; i++) {
        if (i != 0 && i != 9 && i != 11 && i != 16) Py_XDECREF(values[i]);
    }
    *size_found = (int32_t)get32(at);
    *flags |= sys_flag;
    return *message ? 1 : -1;
}

PyObject *read_records(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 4) {
        PyErr_SetString(PyExc_TypeError, "read_records takes bytes, where they begin, a class and a broker's name");
        return NULL;
    }
    if (!PyBytes_CheckExact(args[0])) Py_RETURN_NONE;
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), length = PyBytes_GET_SIZE(args[0]);
    if (at == -1 && PyErr_Occurred()) return NULL;
    if (at < 0) Py_RETURN_NONE;
    PyObject *messages = PyList_New(0);
    if (!messages) return NULL;
    Shared shared = {NULL, NULL, NULL, NULL};
    int32_t flags = 0;
    int found = 1;
    while (at < length) {
        PyObject *message;
        int32_t size;
        found = read_record(PyBytes_AS_STRING(args[0]) + at, length - at, args[2], args[3], &shared, &size, &flags,
                            &message);
        if (found <= 0) break;
        found = PyList_Append(messages, message) < 0 ? -1 : 1;
        Py_DECREF(message);
        if (found < 0) break;
        at += size;
    }
    Py_XDECREF(shared.topic_bytes);
    Py_XDECREF(shared.topic);
    Py_XDECREF(shared.born_host);
    Py_XDECREF(shared.store_host);
    if (found > 0) return Py_BuildValue("(Ni)", messages, (int)flags);
    Py_DECREF(messages);
    if (found < 0) return NULL;
    Py_RETURN_NONE;
}

enum { ENTRY_FIELDS = 9 };

/* Returns the dispatcher's entry of the valid record at `at`; NULL with an error. */
static PyObject *entry_of(const char *at, PyObject *magic, PyObject *topic, const char *properties, const char *end) {
    PyObject *entry = PyTuple_New(ENTRY_FIELDS);
    if (!entry) return NULL;
    PyObject *values[ENTRY_FIELDS] = {
        PyLong_FromLong((int32_t)get32(at)),
        Py_NewRef(magic),
        PyLong_FromLong((int32_t)get32(at + 12)),
        PyLong_FromLongLong(get64(at + 20)),
        PyLong_FromLongLong(get64(at + 28)),
        PyLong_FromLong((int32_t)get32(at + 36)),
        PyLong_FromLongLong(get64(at + 56)),
        Py_NewRef(topic),
        PyBytes_FromStringAndSize(properties, end - properties),
    };
    int complete = 1;
    for (int i = 0; i < ENTRY_FIELDS; i++) {
        complete &= values[i] != NULL;
        PyTuple_SET_ITEM(entry, i, values[i]);
    }
    if (!complete) Py_CLEAR(entry);
    return entry;
}

PyObject *plain_records(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 5) {
        PyErr_SetString(PyExc_TypeError, "plain_records takes bytes, a beginning, an end, a count and a place in the log");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]), count = PyLong_AsSsize_t(args[3]);
    int placed = args[4] != Py_None;
    long long lies_at = placed ? PyLong_AsLongLong(args[4]) : 0;
    if (PyErr_Occurred()) return NULL;
    Py_buffer log;
    if (PyObject_GetBuffer(args[0], &log, PyBUF_SIMPLE) < 0) return NULL;
    if (at < 0 || end > log.len) {
        PyBuffer_Release(&log);
        PyErr_SetString(PyExc_ValueError, "plain_records: not within the bytes");
        return NULL;
    }
    PyObject *entries = PyList_New(0), *magic = PyLong_FromUnsignedLong(0xDAA320A7), *topic_bytes = NULL;
    int failed = !entries || !magic;
    for (; !failed && count > 0 && end - at >= RECORD_MIN; count--) {
        const char *record = (const char *)log.buf + at;
        int32_t size = (int32_t)get32(record), body_length = (int32_t)get32(record + 84);
        if (get32(record + 4) != 0xDAA320A7 || get32(record + 36) & (BORN_WIDE | STORE_WIDE)) break;
        if (size < RECORD_MIN || size > end - at || body_length < 0 || body_length > size - RECORD_MIN) break;
        if (placed && get64(record + 28) != lies_at + at) break;
        const char *stop = record + size, *topic = record + 89 + body_length;
        Py_ssize_t topic_length = (unsigned char)topic[-1];
        if (topic_length > 127 || topic_length > stop - topic - 2) break;
        const char *properties = topic + topic_length + 2;
        if ((Py_ssize_t)get16(properties - 2) > PROPERTIES_MAX || get16(properties - 2) != stop - properties) break;
        PyObject *entry = NULL;
        if (keep_bytes(&topic_bytes, topic, topic_length) >= 0)
            entry = entry_of(record, magic, topic_bytes, properties, stop);
        failed = !entry || PyList_Append(entries, entry) < 0;
        Py_XDECREF(entry);
        at += size;
    }
    PyBuffer_Release(&log);
    Py_XDECREF(magic);
    Py_XDECREF(topic_bytes);
    if (!failed) return Py_BuildValue("(Nn)", entries, at);
    Py_XDECREF(entries);
    return NULL;
}

PyObject *record_starts(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 3) {
        PyErr_SetString(PyExc_TypeError, "record_starts takes a block, where records begin, and where they end");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer block;
    if (PyObject_GetBuffer(args[0], &block, PyBUF_SIMPLE) < 0) return NULL;
    if (at < 0 || end > block.len) {
        PyBuffer_Release(&block);
        PyErr_SetString(PyExc_ValueError, "record_starts: not within the block");
        return NULL;
    }
    const unsigned char *bytes = block.buf;
    Py_ssize_t room = 256, found = 0;
    PyObject *starts = PyBytes_FromStringAndSize(NULL, room * 8);
    while (starts && end - at >= 4) {
        int32_t size = (int32_t)((uint32_t)bytes[at] << 24 | (uint32_t)bytes[at + 1] << 16 |
                                 (uint32_t)bytes[at + 2] << 8 | (uint32_t)bytes[at + 3]);
        if (size <= 0) break;
        if (found == room && _PyBytes_Resize(&starts, (room *= 4) * 8) < 0) break;
        int64_t place = (int64_t)at;
        memcpy(PyBytes_AS_STRING(starts) + found++ * 8, &place, 8);
        at += size;
    }
    PyBuffer_Release(&block);
    if (!starts || _PyBytes_Resize(&starts, found * 8) < 0) return NULL;
    return Py_BuildValue("(Nn)", starts, at);
}

PyObject *record_faults(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 5) {
        PyErr_SetString(PyExc_TypeError, "record_faults takes a block, positions, sizes, places in the log, and whether to check bodies");
        return NULL;
    }
    int check_bodies = PyObject_IsTrue(args[4]);
    if (check_bodies < 0) return NULL;
    Py_buffer buffers[4]; /* block, positions, sizes, places */
    int held = 0;
    while (held < 4 && PyObject_GetBuffer(args[held], &buffers[held], PyBUF_SIMPLE) == 0) held++;
    PyObject *faults = NULL;
    if (held == 4 && (buffers[1].len != buffers[2].len || buffers[1].len != buffers[3].len)) {
        PyErr_SetString(PyExc_ValueError, "record_faults: as many sizes and places as positions");
    } else if (held == 4) {
        faults = PyBytes_FromStringAndSize(NULL, buffers[1].len / 8);
    }
    for (Py_ssize_t row = 0; faults && row < buffers[1].len / 8; row++) {
        int64_t position, size, place;
        memcpy(&position, (const char *)buffers[1].buf + 8 * row, 8);
        memcpy(&size, (const char *)buffers[2].buf + 8 * row, 8);
        memcpy(&place, (const char *)buffers[3].buf + 8 * row, 8);
        Record record;
        int good = read_parts(buffers[0].buf, buffers[0].len, position, &record) &&
                   (int32_t)get32(record.at) == size && get64(record.at + 28) == place;
        if (good && check_bodies && record.body_length)
            good = (crc32_of(record.body, record.body_length) & 0x7FFFFFFF) == get32(record.at + 8);
        PyBytes_AS_STRING(faults)[row] = (char)!good;
    }
    while (held) PyBuffer_Release(&buffers[--held]);
    return faults;
}

/* Returns the packed properties of the record at `at`, which has `size` bytes; NULL if it is not whole. */
static const char *find_properties(const char *at, Py_ssize_t size, Py_ssize_t *length) {
    if (size < RECORD_MIN) return NULL;
    uint32_t sys_flag = get32(at + 36);
    int wide_topic = get32(at + 4) == 0xDAA320AB;
    const char *end = at + size;
    const char *body = at + 48 + (sys_flag & BORN_WIDE ? 20 : 8) + 8 + (sys_flag & STORE_WIDE ? 20 : 8) + 16;
    if (end - body < 3 + wide_topic) return NULL;
    int32_t body_length = (int32_t)get32(body - 4);
    if (body_length < 0 || body_length > end - body - 3 - wide_topic) return NULL;
    const char *topic = body + body_length;
    Py_ssize_t topic_length = wide_topic ? (Py_ssize_t)get16(topic) : (Py_ssize_t)(unsigned char)*topic;
    topic += 1 + wide_topic;
    if (topic_length > end - topic - 2) return NULL;
    const char *properties = topic + topic_length + 2;
    *length = (Py_ssize_t)get16(properties - 2);
    return *length > end - properties ? NULL : properties;
}

enum { FILTER_NAMES_MAX = 16 };

PyObject *values_of(const char *record, Py_ssize_t size, PyObject *names) {
    Py_ssize_t name_count = PyTuple_GET_SIZE(names), length;
    if (name_count > FILTER_NAMES_MAX) return NULL;
    const char *item = find_properties(record, size, &length);
    if (!item) return NULL;
    const char *value_of[FILTER_NAMES_MAX];
    Py_ssize_t length_of[FILTER_NAMES_MAX] = {0}, total = name_count;
    const char *end = item + length;
    while (item < end) {
        const char *stop = memchr(item, 2, (size_t)(end - item));
        if (!stop) stop = end;
        for (Py_ssize_t i = 0; i < name_count; i++) {
            PyObject *name = PyTuple_GET_ITEM(names, i);
            if (!PyBytes_CheckExact(name)) {
                PyErr_SetString(PyExc_TypeError, "names of properties are bytes");
                return NULL;
            }
            Py_ssize_t name_length = PyBytes_GET_SIZE(name), value_length = stop - item - name_length - 1;
            if (value_length <= 0 || item[name_length] != 1) continue; /* the last not empty value counts */
            if (memcmp(item, PyBytes_AS_STRING(name), (size_t)name_length)) continue;
            total += value_length - length_of[i];
            value_of[i] = item + name_length + 1;
            length_of[i] = value_length;
        }
        item = stop + 1;
    }
    PyObject *values = PyBytes_FromStringAndSize(NULL, total);
    if (!values) return NULL;
    char *to = PyBytes_AS_STRING(values);
    for (Py_ssize_t i = 0; i < name_count; i++) {
        if (length_of[i]) memcpy(to, value_of[i], (size_t)length_of[i]);
        to += length_of[i];
        *to++ = 2;
    }
    return values;
}

PyObject *property_values(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 4 || !PyBytes_CheckExact(args[0]) || !PyTuple_CheckExact(args[3])) {
        PyErr_SetString(PyExc_TypeError, "property_values takes bytes, where a record begins, its size and names");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]), size = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (at < 0 || size < 0 || size > PyBytes_GET_SIZE(args[0]) - at) Py_RETURN_NONE;
    PyObject *values = values_of(PyBytes_AS_STRING(args[0]) + at, size, args[3]);
    if (!values && !PyErr_Occurred()) Py_RETURN_NONE;
    return values;
}
