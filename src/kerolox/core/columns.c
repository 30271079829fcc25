/* Records to Arrow columns: one pass over the records of a block fills the buffers of the requested
 * columns.
 *
 * A text column consists of a bitmap of the rows that are not null, offsets of 32 bits, and the bytes; a
 * number column of the numbers. Everything is in the byte order of the machine. */
#include "core.h"

enum {
    HOST_TEXT_MAX = 64,
    PAIRS_MAX = 256, /* maximum properties of one message; above it the Python twin runs */
    WIDE_HOST = 20,
};

/* Kinds of columns, with the numbers of record_columns.py. */
enum {
    TOPIC,
    BODY,
    PACKED,
    MAP,
    KEYS,
    TAGS,
    MSG_ID,
    OFFSET_MSG_ID,
    BORN_HOST,
    STORE_HOST,
    QUEUE_ID,
    QUEUE_OFFSET,
    PHYSICAL_OFFSET,
    BORN_TIMESTAMP,
    STORE_TIMESTAMP,
    RECONSUME_TIMES,
    SYS_FLAG,
    FLAG,
    KINDS,
};

/* Growing bytes in a Python bytes object, which is returned without a copy. */
typedef struct {
    PyObject *object;
    char *data;
    Py_ssize_t length, room;
} Growing;

static int start_growing(Growing *bytes, Py_ssize_t room) {
    bytes->length = 0;
    bytes->room = room < 64 ? 64 : room;
    bytes->object = PyBytes_FromStringAndSize(NULL, bytes->room);
    bytes->data = bytes->object ? PyBytes_AS_STRING(bytes->object) : NULL;
    return bytes->object ? 0 : -1;
}

static int grow(Growing *bytes, Py_ssize_t more) {
    Py_ssize_t room = bytes->room;
    if (more > PY_SSIZE_T_MAX / 4 - bytes->length) {
        PyErr_NoMemory();
        return -1;
    }
    while (room - bytes->length < more) room *= 2;
    if (_PyBytes_Resize(&bytes->object, room) < 0) {
        bytes->data = NULL;
        bytes->room = 0;
        return -1;
    }
    bytes->data = PyBytes_AS_STRING(bytes->object);
    bytes->room = room;
    return 0;
}

/* Reserves room for more bytes and returns its place; NULL with MemoryError. */
static inline char *more_room(Growing *bytes, Py_ssize_t more) {
    if (bytes->room - bytes->length < more && grow(bytes, more) < 0) return NULL;
    return bytes->data + bytes->length;
}

/* Returns the finished bytes, a new reference. */
static PyObject *finished(Growing *bytes) {
    if (bytes->length != bytes->room && _PyBytes_Resize(&bytes->object, bytes->length) < 0) return NULL;
    PyObject *object = bytes->object;
    bytes->object = NULL;
    return object;
}

/* Column of bytes or texts during construction. */
typedef struct {
    Growing offsets, data;
    unsigned char *valid; /* one bit per row; NULL for a column without nulls */
    PyObject *valid_object;
    Py_ssize_t rows, nulls;
} Texts;

static int add_offset(Texts *texts) {
    char *to = more_room(&texts->offsets, 4);
    if (!to) return -1;
    int32_t offset = (int32_t)texts->data.length;
    memcpy(to, &offset, 4);
    texts->offsets.length += 4;
    return 0;
}

static int start_texts(Texts *texts, Py_ssize_t rows, Py_ssize_t room, int nullable) {
    if (start_growing(&texts->offsets, 4 * (rows + 1)) < 0 || start_growing(&texts->data, room) < 0) return -1;
    if (nullable) {
        texts->valid_object = PyBytes_FromStringAndSize(NULL, (rows + 7) / 8);
        if (!texts->valid_object) return -1;
        texts->valid = (unsigned char *)PyBytes_AS_STRING(texts->valid_object);
        memset(texts->valid, 0, (size_t)((rows + 7) / 8));
    }
    return add_offset(texts);
}

/* Returns 1; 0 if offsets of 32 bits are too small; -1 with an error. */
static inline int add_text(Texts *texts, const char *at, Py_ssize_t length) {
    if (length > INT32_MAX - texts->data.length) return 0;
    char *to = more_room(&texts->data, length);
    if (!to) return -1;
    memcpy(to, at, (size_t)length);
    texts->data.length += length;
    if (texts->valid) texts->valid[texts->rows >> 3] |= (unsigned char)(1 << (texts->rows & 7));
    texts->rows++;
    return add_offset(texts) < 0 ? -1 : 1;
}

static inline int add_null(Texts *texts) {
    texts->nulls++;
    texts->rows++;
    return add_offset(texts) < 0 ? -1 : 1;
}

/* Returns (number of nulls, bitmap or None, offsets, data); NULL with an error. */
static PyObject *finished_texts(Texts *texts) {
    PyObject *offsets = finished(&texts->offsets), *data = offsets ? finished(&texts->data) : NULL;
    if (!data) {
        Py_XDECREF(offsets);
        return NULL;
    }
    return Py_BuildValue("(nONN)", texts->nulls, texts->nulls ? texts->valid_object : Py_None, offsets, data);
}

static void drop_texts(Texts *texts) {
    Py_XDECREF(texts->offsets.object);
    Py_XDECREF(texts->data.object);
    Py_XDECREF(texts->valid_object);
}

/* Text of a host, rebuilt only when the host changes, which is rare. */
typedef struct {
    unsigned char host[WIDE_HOST];
    int host_length, text_length;
    char text[HOST_TEXT_MAX];
} HostText;

/* Returns 1; 0 for a text that is too long; -1 with an error. */
static int set_host(HostText *known, const char *host, int length, PyObject *host_text) {
    if (known->host_length == length && memcmp(known->host, host, (size_t)length) == 0) return 1;
    if (length == 8) {
        char *to = known->text;
        for (int i = 0; i < 4; i++) {
            to = put_decimal(to, (unsigned char)host[i]);
            *to++ = i < 3 ? '.' : ':';
        }
        known->text_length = (int)(put_decimal(to, (int32_t)get32(host + 4)) - known->text);
    } else {
        PyObject *text = PyObject_CallFunction(host_text, "y#", host, (Py_ssize_t)length);
        if (!text) return -1;
        Py_ssize_t text_length;
        const char *utf8 = PyUnicode_AsUTF8AndSize(text, &text_length);
        if (utf8 && text_length <= HOST_TEXT_MAX) {
            memcpy(known->text, utf8, (size_t)text_length);
            known->text_length = (int)text_length;
        }
        Py_DECREF(text);
        if (!utf8) return -1;
        if (text_length > HOST_TEXT_MAX) return 0;
    }
    memcpy(known->host, host, (size_t)length);
    known->host_length = length;
    return 1;
}

typedef struct {
    Text name, value;
    uint32_t look; /* equal for equal names */
} Pair;

/* Columns during construction. */
typedef struct {
    Py_ssize_t rows, row;
    int has[KINDS];
    Texts texts[QUEUE_ID];          /* text columns by kind; at MAP the names of the map, */
    Texts values;                   /* and here its values */
    Growing map_offsets;
    PyObject *number_object[KINDS]; /* number columns */
    char *numbers[KINDS];
    HostText born, store, hex;      /* hex: the store host as hex digits */
    int needs_text, needs_pairs;
    PyObject *inflate, *host_text;
} Columns;

static const char HEX[] = "0123456789ABCDEF";

static inline char *put_hex(char *to, const unsigned char *from, Py_ssize_t length) {
    for (Py_ssize_t i = 0; i < length; i++) {
        *to++ = HEX[from[i] >> 4];
        *to++ = HEX[from[i] & 15];
    }
    return to;
}

static int add_body(Columns *columns, const Record *record) {
    if (!(record->sys_flag & 1)) return add_text(&columns->texts[BODY], record->body, record->body_length);
    PyObject *plain = PyObject_CallFunction(columns->inflate, "y#i", record->body, (Py_ssize_t)record->body_length,
                                            (int)record->sys_flag);
    if (!plain) return -1;
    char *data;
    Py_ssize_t length;
    int done = PyBytes_AsStringAndSize(plain, &data, &length) < 0 ? -1
                                                                  : add_text(&columns->texts[BODY], data, length);
    Py_DECREF(plain);
    return done;
}

/* Adds a name and value to the map; if it has the name, replaces the value. Returns 0 if there are too
 * many. */
static inline int keep_pair(Pair *pairs, int *count, uint64_t *seen, Text name, Text value) {
    uint32_t look = (uint32_t)name.length << 16 | (uint32_t)(unsigned char)name.at[0] << 8 |
                    (uint32_t)(unsigned char)name.at[name.length - 1];
    uint64_t bit = (uint64_t)1 << (look * 2654435769u >> 26);
    if (*seen & bit) {
        for (int i = 0; i < *count; i++) {
            if (pairs[i].look != look || pairs[i].name.length != name.length) continue;
            if (memcmp(pairs[i].name.at, name.at, (size_t)name.length)) continue;
            pairs[i].value = value;
            return 1;
        }
    }
    if (*count == PAIRS_MAX) return 0;
    *seen |= bit;
    pairs[(*count)++] = (Pair){name, value, look};
    return 1;
}

static int add_properties(Columns *columns, const Record *record, const char *at, Py_ssize_t length) {
    Pair pairs[PAIRS_MAX];
    int count = 0, done;
    uint64_t seen = 0;
    Text keys = {NULL, 0}, tags = {NULL, 0}, unique = {NULL, 0};
    int with_map = columns->has[MAP];
    const char *end = at + length;
    while (at < end) {
        const char *stop = memchr(at, 2, (size_t)(end - at));
        if (!stop) stop = end;
        const char *middle = memchr(at, 1, (size_t)(stop - at));
        if (middle && middle > at && stop - middle > 1) { /* otherwise the name or the value is empty, and
                                                           * readers drop it */
            Text name = {at, middle - at}, value = {middle + 1, stop - middle - 1};
            if (name.length == 4) {
                if (memcmp(at, "KEYS", 4) == 0) keys = value;
                else if (memcmp(at, "TAGS", 4) == 0) tags = value;
            } else if (name.length == 8 && memcmp(at, "UNIQ_KEY", 8) == 0) {
                unique = value;
            }
            if (with_map && !keep_pair(pairs, &count, &seen, name, value)) return 0;
        }
        at = stop + 1;
    }
    if (columns->has[KEYS]) {
        done = keys.at ? add_text(&columns->texts[KEYS], keys.at, keys.length) : add_null(&columns->texts[KEYS]);
        if (done <= 0) return done;
    }
    if (columns->has[TAGS]) {
        done = tags.at ? add_text(&columns->texts[TAGS], tags.at, tags.length) : add_null(&columns->texts[TAGS]);
        if (done <= 0) return done;
    }
    if (columns->has[MSG_ID]) {
        char id[2 * WIDE_HOST + 16];
        if (!unique.at) {
            char *to = put_hex(id, (const unsigned char *)record->store_host, record->store_length);
            unique = (Text){id, put_hex(to, (const unsigned char *)record->at + 28, 8) - id};
        }
        done = add_text(&columns->texts[MSG_ID], unique.at, unique.length);
        if (done <= 0) return done;
    }
    if (!with_map) return 1;
    for (int i = 0; i < count; i++) {
        done = add_text(&columns->texts[MAP], pairs[i].name.at, pairs[i].name.length);
        if (done > 0) done = add_text(&columns->values, pairs[i].value.at, pairs[i].value.length);
        if (done <= 0) return done;
    }
    char *to = more_room(&columns->map_offsets, 4);
    if (!to) return -1;
    int32_t offset = (int32_t)columns->texts[MAP].rows;
    memcpy(to, &offset, 4);
    columns->map_offsets.length += 4;
    return 1;
}

/* Replaces bytes of a text that are not UTF-8, as Python does. Returns a new reference to the text, which
 * `text` then points into; NULL with an error. */
static PyObject *replaced(Text *text) {
    PyObject *object = PyUnicode_DecodeUTF8(text->at, text->length, "replace");
    if (!object) return NULL;
    text->at = PyUnicode_AsUTF8AndSize(object, &text->length);
    if (!text->at) Py_CLEAR(object);
    return object;
}

static int add_packed(Columns *columns, const Record *record) {
    Text packed = {record->packed, record->packed_length};
    PyObject *made = NULL;
    if (!is_ascii(packed.at, packed.length) && !is_utf8(packed.at, packed.length)) {
        made = replaced(&packed);
        if (!made) return -1;
    }
    int done = columns->has[PACKED] ? add_text(&columns->texts[PACKED], packed.at, packed.length) : 1;
    if (done > 0 && columns->needs_pairs) done = add_properties(columns, record, packed.at, packed.length);
    Py_XDECREF(made);
    return done;
}

static int add_topic(Columns *columns, const Record *record) {
    Text topic = {record->topic, record->topic_length};
    PyObject *made = NULL;
    if (!is_ascii(topic.at, topic.length) && !is_utf8(topic.at, topic.length)) {
        made = replaced(&topic);
        if (!made) return -1;
    }
    int done = add_text(&columns->texts[TOPIC], topic.at, topic.length);
    Py_XDECREF(made);
    return done;
}

static int add_offset_id(Columns *columns, const Record *record) {
    HostText *known = &columns->hex;
    if (known->host_length != record->store_length ||
        memcmp(known->host, record->store_host, (size_t)record->store_length)) {
        known->host_length = record->store_length;
        memcpy(known->host, record->store_host, (size_t)record->store_length);
        known->text_length = (int)(put_hex(known->text, known->host, known->host_length) - known->text);
    }
    put_hex16(known->text + known->text_length, (uint64_t)get64(record->at + 28));
    return add_text(&columns->texts[OFFSET_MSG_ID], known->text, known->text_length + 16);
}

static inline void set32(Columns *columns, int kind, int32_t value) {
    if (columns->numbers[kind]) memcpy(columns->numbers[kind] + 4 * columns->row, &value, 4);
}

static inline void set64(Columns *columns, int kind, int64_t value) {
    if (columns->numbers[kind]) memcpy(columns->numbers[kind] + 8 * columns->row, &value, 8);
}

/* Adds one row. Returns 1; 0 to fall back to the Python twin; -1 with an error. */
static int add_row(Columns *columns, const Record *record) {
    const char *at = record->at;
    set32(columns, QUEUE_ID, (int32_t)get32(at + 12));
    set32(columns, FLAG, (int32_t)get32(at + 16));
    set64(columns, QUEUE_OFFSET, get64(at + 20));
    set64(columns, PHYSICAL_OFFSET, get64(at + 28));
    set32(columns, SYS_FLAG, record->sys_flag);
    set64(columns, BORN_TIMESTAMP, (int64_t)((uint64_t)get64(at + 40) * 1000));
    set64(columns, STORE_TIMESTAMP, (int64_t)((uint64_t)get64(record->store_host - 8) * 1000));
    set32(columns, RECONSUME_TIMES, (int32_t)get32(record->rest));
    int done = 1;
    if (columns->has[BODY]) done = add_body(columns, record);
    if (done > 0 && columns->has[TOPIC]) done = add_topic(columns, record);
    if (done > 0 && columns->needs_text) done = add_packed(columns, record);
    if (done > 0 && columns->has[OFFSET_MSG_ID]) done = add_offset_id(columns, record);
    if (done > 0 && columns->has[BORN_HOST]) {
        done = set_host(&columns->born, record->born_host, record->born_length, columns->host_text);
        if (done > 0) done = add_text(&columns->texts[BORN_HOST], columns->born.text, columns->born.text_length);
    }
    if (done > 0 && columns->has[STORE_HOST]) {
        done = set_host(&columns->store, record->store_host, record->store_length, columns->host_text);
        if (done > 0) done = add_text(&columns->texts[STORE_HOST], columns->store.text, columns->store.text_length);
    }
    return done;
}

static int number_bytes(int kind) {
    switch (kind) {
        case QUEUE_OFFSET: case PHYSICAL_OFFSET: case BORN_TIMESTAMP: case STORE_TIMESTAMP: return 8;
        default: return 4;
    }
}

/* Reserves room for all rows, as far as it follows from the lengths of the records. */
static int start_columns(Columns *columns, Py_ssize_t bodies, Py_ssize_t topics, Py_ssize_t packed) {
    Py_ssize_t rows = columns->rows;
    Py_ssize_t room[QUEUE_ID] = {
        [TOPIC] = topics, [BODY] = bodies, [PACKED] = packed, [MAP] = packed / 2, [KEYS] = 20 * rows, [TAGS] = 12 * rows,
        [MSG_ID] = 33 * rows, [OFFSET_MSG_ID] = 32 * rows, [BORN_HOST] = 18 * rows, [STORE_HOST] = 18 * rows,
    };
    for (int kind = 0; kind < KINDS; kind++) {
        if (!columns->has[kind]) continue;
        if (kind < QUEUE_ID) {
            if (start_texts(&columns->texts[kind], rows, room[kind], kind == KEYS || kind == TAGS) < 0) return -1;
            continue;
        }
        columns->number_object[kind] = PyBytes_FromStringAndSize(NULL, rows * number_bytes(kind));
        if (!columns->number_object[kind]) return -1;
        columns->numbers[kind] = PyBytes_AS_STRING(columns->number_object[kind]);
    }
    if (columns->has[MAP]) {
        if (start_texts(&columns->values, 4 * rows, packed / 2, 0) < 0) return -1;
        if (start_growing(&columns->map_offsets, 4 * (rows + 1)) < 0) return -1;
        memset(more_room(&columns->map_offsets, 4), 0, 4);
        columns->map_offsets.length = 4;
    }
    columns->needs_pairs = columns->has[MAP] || columns->has[KEYS] || columns->has[TAGS] || columns->has[MSG_ID];
    columns->needs_text = columns->needs_pairs || columns->has[PACKED];
    return 0;
}

static PyObject *finished_column(Columns *columns, int kind) {
    if (kind >= QUEUE_ID) return Py_NewRef(columns->number_object[kind]);
    PyObject *texts = finished_texts(&columns->texts[kind]);
    if (kind != MAP || !texts) return texts;
    PyObject *values = finished_texts(&columns->values), *offsets = values ? finished(&columns->map_offsets) : NULL;
    if (offsets) return Py_BuildValue("(NNN)", offsets, texts, values);
    Py_DECREF(texts);
    Py_XDECREF(values);
    return NULL;
}

static void drop_columns(Columns *columns) {
    for (int kind = 0; kind < QUEUE_ID; kind++) drop_texts(&columns->texts[kind]);
    drop_texts(&columns->values);
    Py_XDECREF(columns->map_offsets.object);
    for (int kind = 0; kind < KINDS; kind++) Py_XDECREF(columns->number_object[kind]);
}

/* Adds all rows. Returns 1; 0 to fall back to the Python twin; -1 with an error. */
static int fill_columns(Columns *columns, const char *block, Py_ssize_t length, const char *positions) {
    Record record;
    int64_t place;
    Py_ssize_t bodies = 0, topics = 0, packed = 0;
    for (Py_ssize_t row = 0; row < columns->rows; row++) {
        memcpy(&place, positions + 8 * row, 8);
        if (!read_parts(block, length, place, &record)) return 0;
        bodies += record.body_length;
        topics += record.topic_length;
        packed += record.packed_length;
    }
    if (bodies > INT32_MAX || packed > INT32_MAX) return 0;
    if (start_columns(columns, bodies, topics, packed) < 0) return -1;
    int done = 1;
    for (columns->row = 0; columns->row < columns->rows && done > 0; columns->row++) {
        memcpy(&place, positions + 8 * columns->row, 8);
        /* Checked again, because a callback may have changed the block meanwhile. */
        done = read_parts(block, length, place, &record) ? add_row(columns, &record) : 0;
    }
    return done;
}

PyObject *record_columns(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 5 || !PyBytes_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "record_columns takes a block, positions, kinds of columns as bytes, and two functions");
        return NULL;
    }
    const unsigned char *kinds = (const unsigned char *)PyBytes_AS_STRING(args[2]);
    Py_ssize_t kind_count = PyBytes_GET_SIZE(args[2]);
    Columns columns;
    memset(&columns, 0, sizeof columns);
    columns.inflate = args[3];
    columns.host_text = args[4];
    for (Py_ssize_t i = 0; i < kind_count; i++) {
        if (kinds[i] < KINDS && !columns.has[kinds[i]]) {
            columns.has[kinds[i]] = 1;
            continue;
        }
        PyErr_Format(PyExc_ValueError, "record_columns: kind %d is unknown or asked for twice", kinds[i]);
        return NULL;
    }
    Py_buffer block, positions;
    if (PyObject_GetBuffer(args[0], &block, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[1], &positions, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&block);
        return NULL;
    }
    columns.rows = positions.len / 8;
    int done = columns.rows > INT32_MAX / 64 ? 0 : fill_columns(&columns, block.buf, block.len, positions.buf);
    PyBuffer_Release(&positions);
    PyBuffer_Release(&block);
    PyObject *found = done > 0 ? PyList_New(kind_count) : NULL;
    for (Py_ssize_t i = 0; found && i < kind_count; i++) {
        PyObject *column = finished_column(&columns, kinds[i]);
        if (column) PyList_SET_ITEM(found, i, column);
        else Py_CLEAR(found);
    }
    drop_columns(&columns);
    if (done == 0) Py_RETURN_NONE;
    return found;
}
