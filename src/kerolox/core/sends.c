/* Plain sends: from frames to records, queue entries and answers in one call, see protocol/plain_sends.py. */
#include "core.h"

enum {
    BLANK_BYTES = 8, /* bytes that must stay free at the end of a log file */
    ITEM_BYTES = 22, /* bytes of a batch per message, without body and properties */
    BATCH_COUNT_MAX = 65536,
};

/* Queue that got messages in this run: they get their offsets here, and the cursor is updated at the end. */
typedef struct {
    PyObject *cursor, *before; /* before: its previous next_offset, restored if the run fails */
    int32_t queue_id;
    int64_t first, next;
} Queue;

/* Rules of protocol/send_rules.py: values of its attributes, owned references, and what they contain. */
typedef struct {
    PyObject *values[RULE_COUNT];
    Text texts[RULE_TEXT_COUNT];
    int wait_matters;
    int64_t body_bytes_max;
} Rules;

#define RULE(run, name) ((run)->rules.texts[RULE_##name])

/* Run of sends that is being appended to the log. */
typedef struct {
    /* parameters */
    Rules rules;
    const char *born_host;
    Py_ssize_t born_host_length;
    PyObject *park; /* function that returns where to store a delayed message; or None */
    int must_sign;
    Signer signer; /* required signer of each send, if they must be signed */
    int64_t file_end, now_ms;
    PyObject *now;
    PyObject *next_offset; /* name of the attribute */
    /* the topic's target, owned references because callbacks may change the table of topics */
    PyObject *target, *topic_name, *field, *cursors;
    PyObject *stored_name; /* name of the topic the messages are stored under, which differs for delayed
                            * messages */
    /* results */
    int64_t end;
    Buffer records, answers;
    PyObject *entries;
    Queue queues[QUEUES_MAX];
    int queue_count;
    Py_ssize_t messages;
} Run;

static Queue *add_queue(Run *run, int32_t queue_id, PyObject *cursor) {
    PyObject *before = PyObject_GetAttr(cursor, run->next_offset);
    if (!before) return NULL;
    long long offset = PyLong_AsLongLong(before);
    if (offset == -1 && PyErr_Occurred()) {
        Py_DECREF(before);
        return NULL;
    }
    Queue *queue = &run->queues[run->queue_count++];
    *queue = (Queue){Py_NewRef(cursor), before, queue_id, offset, offset};
    return queue;
}

/* Returns the queue of a send; NULL if it is unknown, or, with an exception, on an error. */
static Queue *queue_of(Run *run, int32_t queue_id) {
    for (int i = 0; i < run->queue_count; i++)
        if (run->queues[i].queue_id == queue_id) return &run->queues[i];
    if (run->queue_count == QUEUES_MAX) return NULL;
    PyObject *key = PyLong_FromLong(queue_id);
    if (!key) return NULL;
    PyObject *cursor = Py_XNewRef(PyDict_GetItemWithError(run->cursors, key));
    Py_DECREF(key);
    if (!cursor) return NULL;
    Queue *queue = add_queue(run, queue_id, cursor);
    Py_DECREF(cursor);
    return queue;
}

static Py_ssize_t record_overhead(const Run *run) {
    return 74 + run->born_host_length + RULE(run, store_host).length + PyBytes_GET_SIZE(run->field);
}

/* Writes one record and its entry. The properties are two pieces, with the separator between them. */
static int put_record(Run *run, Queue *queue, const Send *send, int32_t message_flag, Text body, Text own,
                      int separated, Text added) {
    Py_ssize_t properties_length = own.length + separated + added.length;
    Py_ssize_t size = record_overhead(run) + body.length + properties_length;
    char *to = reserve(&run->records, size);
    if (!to) return 0;
    uint32_t hosts = (run->born_host_length == 20 ? 0x10u : 0) | (RULE(run, store_host).length == 20 ? 0x20u : 0);
    to = put32(to, (uint32_t)size);
    to = put32(to, PyBytes_GET_SIZE(run->field) <= 128 ? 0xDAA320A7u : 0xDAA320ABu);
    to = put32(to, crc32_of(body.at, body.length) & 0x7FFFFFFFu);
    to = put32(to, (uint32_t)queue->queue_id);
    to = put32(to, (uint32_t)message_flag);
    to = put64(to, (uint64_t)queue->next);
    to = put64(to, (uint64_t)run->end);
    to = put32(to, (uint32_t)send->sys_flag | hosts);
    to = put64(to, (uint64_t)send->born_timestamp);
    to = put_bytes(to, run->born_host, run->born_host_length);
    to = put64(to, (uint64_t)run->now_ms);
    to = put_bytes(to, RULE(run, store_host).at, RULE(run, store_host).length);
    to = put32(to, (uint32_t)send->reconsume_times);
    to = put64(to, 0);
    to = put32(to, (uint32_t)body.length);
    to = put_bytes(to, body.at, body.length);
    to = put_bytes(to, PyBytes_AS_STRING(run->field), PyBytes_GET_SIZE(run->field));
    to = put16(to, (uint32_t)properties_length);
    const char *properties = to;
    to = put_bytes(to, own.at, own.length);
    if (separated) *to++ = 2;
    to = put_bytes(to, added.at, added.length);

    PyObject *entry = PyTuple_New(9);
    if (!entry) return 0;
    PyTuple_SET_ITEM(entry, 0, PyLong_FromSsize_t(size));
    PyTuple_SET_ITEM(entry, 1, PyLong_FromLong(0));
    PyTuple_SET_ITEM(entry, 2, PyLong_FromLong(queue->queue_id));
    PyTuple_SET_ITEM(entry, 3, PyLong_FromLongLong(queue->next));
    PyTuple_SET_ITEM(entry, 4, PyLong_FromLongLong(run->end));
    PyTuple_SET_ITEM(entry, 5, PyLong_FromLong(send->sys_flag));
    PyTuple_SET_ITEM(entry, 6, Py_NewRef(run->now));
    PyTuple_SET_ITEM(entry, 7, Py_NewRef(run->topic_name));
    PyTuple_SET_ITEM(entry, 8, PyBytes_FromStringAndSize(properties, properties_length));
    int made = 1;
    for (int i = 0; i < 9; i++) made = made && PyTuple_GET_ITEM(entry, i);
    made = made && PyList_Append(run->entries, entry) == 0;
    Py_DECREF(entry);
    if (!made) return 0;
    run->records.length += size;
    run->end += size;
    run->messages++;
    queue->next++;
    return 1;
}

/* Constant texts of answers. The size of an answer without its own texts is computed from them. */
#define JSON_ID "{\"code\":0,\"extFields\":{\"msgId\":\""
#define JSON_QUEUE "\",\"queueId\":\""
#define JSON_OFFSET "\",\"queueOffset\":\""
#define JSON_UNIQUE "\",\"transactionId\":\""
#define JSON_HANDLE "\",\"recallHandle\":\""
/* Binary fields: two bytes of length and the name, then four bytes for the length of the value. */
#define BINARY_ID "\x00\x05msgId"
#define BINARY_QUEUE "\x00\x07queueId"
#define BINARY_OFFSET "\x00\x0bqueueOffset"
#define BINARY_UNIQUE "\x00\x0dtransactionId"
#define BINARY_HANDLE "\x00\x0crecallHandle"
#define LENGTH(literal) ((Py_ssize_t)sizeof(literal) - 1)

enum {
    DECIMAL_MAX = 20, /* digits of a 64-bit number, with its sign */
    FRAME_START = 8,
    JSON_TEXTS = LENGTH(JSON_ID) + LENGTH(JSON_QUEUE) + LENGTH(JSON_OFFSET) + LENGTH(JSON_UNIQUE) + LENGTH(JSON_HANDLE),
    BINARY_TEXTS = LENGTH(BINARY_ID) + LENGTH(BINARY_QUEUE) + LENGTH(BINARY_OFFSET) + LENGTH(BINARY_UNIQUE) +
                   LENGTH(BINARY_HANDLE) + 5 * 4,
    BINARY_NUMBERS = 4 * 4, /* opaque, flag, length of the remark, length of the fields */
    ANSWER_ROOM = FRAME_START + JSON_TEXTS + BINARY_TEXTS + BINARY_NUMBERS + 3 * DECIMAL_MAX,
};

static char *put_field(char *to, const char *name, Py_ssize_t name_length, Text value) {
    to = put32(put_bytes(to, name, name_length), (uint32_t)value.length);
    return put_bytes(to, value.at, value.length);
}

#define PUT_FIELD(to, name, value) put_field(to, name, LENGTH(name), value)

/* Writes the answer to a send whose messages have these offsets and places. */
static int put_answer(Run *run, const Send *send, int64_t queue_offset, Text unique, const int64_t *places,
                      Py_ssize_t count, Text handle) {
    if (send->flag & FLAG_ONE_WAY) return 1;
    Py_ssize_t ids = count * (RULE(run, id_prefix).length + 17) - 1;
    char *start = reserve(&run->answers, ANSWER_ROOM + ids + unique.length + handle.length + RULE(run, json_after).length +
                                             RULE(run, json_end).length + RULE(run, binary_head).length + RULE(run, binary_tail).length);
    if (!start) return 0;
    char queue_digits[DECIMAL_MAX], offset_digits[DECIMAL_MAX];
    Text queue_id = {queue_digits, put_decimal(queue_digits, send->queue_id) - queue_digits};
    Text offset = {offset_digits, put_decimal(offset_digits, queue_offset) - offset_digits};
    char *header = start + FRAME_START, *to = header, *fields = NULL;
    if (send->encoding == JSON) to = PUT_LITERAL(to, JSON_ID);
    else {
        to = put_bytes(to, RULE(run, binary_head).at, RULE(run, binary_head).length);
        to = put32(to, (uint32_t)send->opaque);
        to = put32(to, FLAG_ANSWER);
        to = put32(to, 0); /* no remark */
        fields = to + 4;   /* their length is written after them */
        to = PUT_LITERAL(fields, BINARY_ID);
        to = put32(to, (uint32_t)ids);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i) *to++ = ',';
        to = put_bytes(to, RULE(run, id_prefix).at, RULE(run, id_prefix).length);
        to = put_hex16(to, (uint64_t)places[i]);
    }
    if (send->encoding == JSON) {
        to = PUT_LITERAL(to, JSON_QUEUE);
        to = put_bytes(to, queue_id.at, queue_id.length);
        to = PUT_LITERAL(to, JSON_OFFSET);
        to = put_bytes(to, offset.at, offset.length);
        if (unique.length) to = put_bytes(PUT_LITERAL(to, JSON_UNIQUE), unique.at, unique.length);
        if (handle.length) to = put_bytes(PUT_LITERAL(to, JSON_HANDLE), handle.at, handle.length);
        to = put_bytes(to, RULE(run, json_after).at, RULE(run, json_after).length);
        to = put_decimal(to, send->opaque);
        to = put_bytes(to, RULE(run, json_end).at, RULE(run, json_end).length);
    } else {
        to = PUT_FIELD(to, BINARY_QUEUE, queue_id);
        to = PUT_FIELD(to, BINARY_OFFSET, offset);
        if (unique.length) to = PUT_FIELD(to, BINARY_UNIQUE, unique);
        if (handle.length) to = PUT_FIELD(to, BINARY_HANDLE, handle);
        to = put_bytes(to, RULE(run, binary_tail).at, RULE(run, binary_tail).length);
        put32(fields - 4, (uint32_t)(to - fields));
    }
    put32(start, (uint32_t)(4 + (to - header)));
    put32(start + 4, (uint32_t)send->encoding << 24 | (uint32_t)(to - header));
    run->answers.length += to - start;
    return 1;
}

/* Returns true if a key needs no escapes: letters, digits and other common characters of names. */
static int is_simple(Text text) {
    for (Py_ssize_t i = 0; i < text.length; i++) {
        char c = text.at[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_'))
            return 0;
    }
    return text.length > 0;
}

/* Returns true if messages stored under this topic fit into the run: all messages of a run are stored
 * under one topic. */
static int goes_on(Run *run, PyObject *topic) {
    if (!run->stored_name) {
        run->stored_name = Py_NewRef(topic);
        return 1;
    }
    return PyBytes_GET_SIZE(topic) == PyBytes_GET_SIZE(run->stored_name) &&
           memcmp(PyBytes_AS_STRING(topic), PyBytes_AS_STRING(run->stored_name), (size_t)PyBytes_GET_SIZE(topic)) == 0;
}

/* Returns 1 if it was appended, 0 to leave it to the handlers, -1 with an error. */
static int take_single(Run *run, const Send *send, Text body, Text unique) {
    Text own = send->properties, added = RULE(run, added);
    int separated = own.length && added.length && own.at[own.length - 1] != 2;
    Py_ssize_t properties_length = own.length + separated + added.length;
    int64_t size = (int64_t)record_overhead(run) + body.length + properties_length;
    if (!body.length || properties_length > PROPERTIES_MAX || size > run->rules.body_bytes_max ||
        run->end + size + BLANK_BYTES > run->file_end)
        return 0;
    if (!goes_on(run, run->topic_name)) return 0;
    Queue *queue = queue_of(run, send->queue_id);
    if (!queue) return PyErr_Occurred() ? -1 : 0;
    int64_t place = run->end, offset = queue->next;
    Text no_handle = {"", 0};
    if (!put_record(run, queue, send, send->message_flag, body, own, separated, added)) return -1;
    return put_answer(run, send, offset, unique, &place, 1, no_handle) ? 1 : -1;
}

/* Appends a delayed message under the topic and queue in `parked`. */
static int put_parked(Run *run, const Send *send, Text body, Text unique, PyObject *parked) {
    PyObject *topic_name, *field, *cursor, *properties, *handle;
    int queue_id;
    if (!PyTuple_Check(parked) ||
        !PyArg_ParseTuple(parked, "SSiOSS", &topic_name, &field, &queue_id, &cursor, &properties, &handle)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "what is parked is a tuple");
        return -1;
    }
    Text own = {PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties)}, nothing = {"", 0};
    int64_t size = (int64_t)record_overhead(run) - PyBytes_GET_SIZE(run->field) + PyBytes_GET_SIZE(field) + body.length +
                   own.length;
    if (own.length > PROPERTIES_MAX || size > run->rules.body_bytes_max ||
        run->end + size + BLANK_BYTES > run->file_end)
        return 0;
    if (!goes_on(run, topic_name)) return 0;
    Queue *queue = NULL;
    for (int i = 0; i < run->queue_count && !queue; i++)
        if (run->queues[i].cursor == cursor) queue = &run->queues[i];
    if (!queue) {
        if (run->queue_count == QUEUES_MAX) return 0;
        queue = add_queue(run, queue_id, cursor);
        if (!queue) return -1;
    }
    int64_t place = run->end, offset = queue->next;
    Text said = {PyBytes_AS_STRING(handle), PyBytes_GET_SIZE(handle)};
    PyObject *own_name = run->topic_name, *own_field = run->field;
    run->topic_name = topic_name;
    run->field = field;
    int good = put_record(run, queue, send, send->message_flag, body, own, 0, nothing) &&
               put_answer(run, send, offset, unique, &place, 1, said);
    run->topic_name = own_name;
    run->field = own_field;
    return good ? 1 : -1;
}

/* Handles a delayed message, or one that needs a handler. */
static int take_later(Run *run, const Send *send, Text body, Text unique) {
    if (run->park == Py_None || send->code != SEND || !body.length) return 0;
    PyObject *key = PyLong_FromLong(send->queue_id);
    int known = key ? PyDict_Contains(run->cursors, key) : -1;
    Py_XDECREF(key);
    if (known <= 0) return known;
    Text own = send->properties;
    int separated = own.length && RULE(run, added).length && own.at[own.length - 1] != 2;
    PyObject *whole = PyBytes_FromStringAndSize(NULL, own.length + separated + RULE(run, added).length);
    if (!whole) return -1;
    char *to = put_bytes(PyBytes_AS_STRING(whole), own.at, own.length);
    if (separated) *to++ = 2;
    put_bytes(to, RULE(run, added).at, RULE(run, added).length);
    PyObject *parked = PyObject_CallFunction(run->park, "OiN", run->topic_name, (int)send->queue_id, whole);
    if (!parked) return -1;
    int took = parked == Py_None ? 0 : put_parked(run, send, body, unique, parked);
    Py_DECREF(parked);
    return took;
}

/* Reads the item of a batch at `at`: its flag, body and properties, and the place of the next; returns 0
 * if it is broken. */
static int read_item(const char **at, const char *end, int32_t *flag, Text *body, Text *properties) {
    const char *p = *at;
    if (end - p < ITEM_BYTES) return 0;
    *flag = (int32_t)get32(p + 12);
    int64_t length = (int32_t)get32(p + 16);
    p += 20;
    if (length < 0 || length > end - p - 2) return 0;
    *body = (Text){p, (Py_ssize_t)length};
    p += length;
    uint32_t properties_length = get16(p);
    p += 2;
    if (properties_length > PROPERTIES_MAX || properties_length > end - p) return 0;
    *properties = (Text){p, (Py_ssize_t)properties_length};
    *at = p + properties_length;
    return 1;
}

static int take_batch(Run *run, const Send *send, Text batch, Text unique) {
    const char *at = batch.at, *end = batch.at + batch.length;
    int64_t total = 0;
    Py_ssize_t count = 0;
    int32_t flag;
    Text body, properties, nothing = {"", 0};
    while (at < end) {
        if (!read_item(&at, end, &flag, &body, &properties)) return 0;
        total += record_overhead(run) + body.length + properties.length;
        if (++count > BATCH_COUNT_MAX) return 0;
    }
    if (!count || total > run->rules.body_bytes_max || run->end + total + BLANK_BYTES > run->file_end) return 0;
    if (!goes_on(run, run->topic_name)) return 0;
    Queue *queue = queue_of(run, send->queue_id);
    if (!queue) return PyErr_Occurred() ? -1 : 0;
    int64_t offset = queue->next;
    int64_t *places = PyMem_Malloc((size_t)count * sizeof *places);
    if (!places) {
        PyErr_NoMemory();
        return -1;
    }
    at = batch.at;
    int good = 1;
    for (Py_ssize_t i = 0; good && i < count; i++) {
        read_item(&at, end, &flag, &body, &properties);
        places[i] = run->end;
        good = put_record(run, queue, send, flag, body, properties, 0, nothing);
    }
    good = good && put_answer(run, send, offset, unique, places, count, nothing);
    PyMem_Free(places);
    return good ? 1 : -1;
}

/* Frame that has been read. */
typedef struct {
    PyObject *frame; /* owned reference; NULL without a frame */
    Send send;
    Claim claim;
    Buffer scratch;
} Reading;

static void let_go(Reading *reading) { Py_CLEAR(reading->frame); }

/* Returns 1 if it was read, 0 to leave it to the handlers, -1 with an error. */
static int read_frame(Reading *reading, PyObject *frame) {
    if (!PyTuple_Check(frame) || PyTuple_GET_SIZE(frame) != 3 || !PyLong_Check(PyTuple_GET_ITEM(frame, 0)) ||
        !PyBytes_Check(PyTuple_GET_ITEM(frame, 1)) || !PyBytes_Check(PyTuple_GET_ITEM(frame, 2))) {
        PyErr_SetString(PyExc_TypeError, "a frame is a tuple of encoding, header and body");
        return -1;
    }
    long encoding = PyLong_AsLong(PyTuple_GET_ITEM(frame, 0));
    if (encoding == -1 && PyErr_Occurred()) return -1;
    if (encoding != JSON && encoding != BINARY) return 0;
    PyObject *header = PyTuple_GET_ITEM(frame, 1), *content = PyTuple_GET_ITEM(frame, 2);
    Py_ssize_t length = PyBytes_GET_SIZE(header);
    reading->scratch.length = 0;
    char *room = reserve(&reading->scratch, 2 * (length + 1)); /* for unescaped text, and for signed text */
    if (!room) return -1;
    if (!read_send((int)encoding, PyBytes_AS_STRING(header), length, room, &reading->send)) return 0;
    Text body = {PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content)};
    reading->claim = (Claim){&reading->send, body, room + length + 1, 0};
    reading->frame = Py_NewRef(frame);
    return 1;
}

/* Reads the frame of a list at an index. Returns 1, 0 to leave it to the handlers, -1 with an error. If
 * frames must be signed the next one is read too, because two signatures are checked in little more time
 * than one. */
static int read_ahead(Run *run, PyObject *frames, Py_ssize_t at, Reading *reading, Reading *next) {
    PyObject *frame = PyList_GET_ITEM(frames, at);
    if (reading->frame == frame) return 1; /* read with the previous one */
    let_go(reading);
    int read = read_frame(reading, frame);
    if (read <= 0 || !run->must_sign) return read;
    Claim *claims[2] = {&reading->claim, &next->claim};
    int count = 1;
    let_go(next);
    if (at + 1 < PyList_GET_SIZE(frames)) {
        if (read_frame(next, PyList_GET_ITEM(frames, at + 1)) > 0) count = 2;
        else PyErr_Clear(); /* reported when it is next */
    }
    if (count == 2 && next->claim.body.length > run->rules.body_bytes_max) {
        let_go(next);
        count = 1;
    }
    if (reading->claim.body.length > run->rules.body_bytes_max) return 0;
    check_claims(&run->signer, claims, count);
    return 1;
}

/* Returns 1 if it was appended, 0 to leave it to the handlers, -1 with an error. */
static int take_read(Run *run, const Reading *reading, PyObject *targets) {
    const Send *send = &reading->send;
    Text body = reading->claim.body;
    if (run->must_sign && !reading->claim.is_signed) return 0;
    if (!run->topic_name) {
        PyObject *topic = PyBytes_FromStringAndSize(send->topic.at, send->topic.length);
        if (!topic) return -1;
        PyObject *target = Py_XNewRef(PyDict_GetItemWithError(targets, topic));
        Py_DECREF(topic);
        if (!target) return PyErr_Occurred() ? -1 : 0;
        run->target = target;
        if (!PyTuple_Check(target) ||
            !PyArg_ParseTuple(target, "SSO!", &run->topic_name, &run->field, &PyDict_Type, &run->cursors)) {
            run->topic_name = NULL;
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a target is a tuple");
            return -1;
        }
    }
    if (!same_text(send->topic, PyBytes_AS_STRING(run->topic_name), PyBytes_GET_SIZE(run->topic_name))) return 0;
    Properties found;
    read_properties(send->properties.at, send->properties.length, &found);
    /* A batch need not have its own key, and kerolox's batches have none. */
    if (!is_simple(found.unique_key) && (send->code == SEND || found.unique_key.length)) return 0;
    if (run->rules.wait_matters && IS_LITERAL(found.wait, "false")) return 0;
    if (has_any(send->properties.at, send->properties.length, run->rules.values[RULE_stops]))
        return take_later(run, send, body, found.unique_key);
    return (send->code == SEND ? take_single : take_batch)(run, send, body, found.unique_key);
}

/* Updates the cursors; if one cannot be updated, none is. */
static int move_cursors(Run *run) {
    int moved = 0;
    for (; moved < run->queue_count; moved++) {
        PyObject *next = PyLong_FromLongLong(run->queues[moved].next);
        int failed = !next || PyObject_SetAttr(run->queues[moved].cursor, run->next_offset, next) < 0;
        Py_XDECREF(next);
        if (failed) break;
    }
    if (moved == run->queue_count) return 1;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    while (moved--)
        if (PyObject_SetAttr(run->queues[moved].cursor, run->next_offset, run->queues[moved].before) < 0)
            PyErr_WriteUnraisable(run->queues[moved].cursor);
    PyErr_Restore(type, value, traceback);
    return 0;
}

static int read_rules(PyObject *rules, PyObject *const *names, Rules *read) {
    for (int i = 0; i < RULE_COUNT; i++) {
        PyObject *value = read->values[i] = PyObject_GetAttr(rules, names[i]);
        if (!value) return 0;
        int is_text = i < RULE_TEXT_COUNT;
        if (is_text ? !PyBytes_Check(value) : i == RULE_stops && !PyTuple_Check(value)) {
            PyErr_Format(PyExc_TypeError, "take_sends: rule %U has the wrong type", names[i]);
            return 0;
        }
        if (is_text) read->texts[i] = (Text){PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)};
    }
    read->wait_matters = PyObject_IsTrue(read->values[RULE_wait_matters]);
    read->body_bytes_max = PyLong_AsLongLong(read->values[RULE_body_bytes_max]);
    return !PyErr_Occurred() && are_words(read->values[RULE_stops], "take_sends");
}

PyObject *take_sends(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 10) return PyErr_Format(PyExc_TypeError, "take_sends takes 10 arguments, got %zd", arg_count);
    PyObject *frames = args[0], *targets = args[2], *born_host = args[5];
    if (!PyList_Check(frames) || !PyDict_Check(targets) || !PyBytes_Check(born_host) || !PyLong_Check(args[8])) {
        PyErr_SetString(PyExc_TypeError, "take_sends: list, int, dict, rules, function, bytes and numbers expected");
        return NULL;
    }
    CoreState *state = PyModule_GetState(module);
    Run run;
    memset(&run, 0, offsetof(Run, queues));
    run.queue_count = 0;
    run.messages = 0;
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    run.park = args[4];
    run.end = PyLong_AsLongLong(args[6]);
    run.file_end = PyLong_AsLongLong(args[7]);
    run.now = args[8];
    run.now_ms = PyLong_AsLongLong(run.now);
    run.next_offset = state->next_offset;
    if (PyErr_Occurred()) return NULL;
    run.must_sign = args[9] != Py_None;
    if (run.must_sign && !read_signer(args[9], &run.signer)) return NULL;
    run.born_host = PyBytes_AS_STRING(born_host);
    run.born_host_length = PyBytes_GET_SIZE(born_host);
    if ((run.born_host_length != 8 && run.born_host_length != 20) || at < 0) {
        PyErr_SetString(PyExc_ValueError, "take_sends: a host has 8 or 20 bytes, a place is not negative");
        return NULL;
    }
    Reading readings[2] = {0};
    PyObject *result = NULL, *taken = NULL;
    Py_ssize_t count = 0;
    run.entries = PyList_New(0);
    if (!run.entries || !read_rules(args[3], state->rules, &run.rules)) goto done;
    if (RULE(&run, store_host).length != 8 && RULE(&run, store_host).length != 20) {
        PyErr_SetString(PyExc_ValueError, "take_sends: a host has 8 or 20 bytes");
        goto done;
    }
    for (; at + count < PyList_GET_SIZE(frames); count++) {
        Reading *reading = &readings[count & 1];
        int took = read_ahead(&run, frames, at + count, reading, &readings[~count & 1]);
        if (took > 0) took = take_read(&run, reading, targets);
        let_go(reading);
        if (took < 0) goto done;
        if (!took) break;
    }
    if (!count) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    taken = PyList_New(0);
    if (!taken) goto done;
    for (int i = 0; i < run.queue_count; i++) {
        PyObject *pair = Py_BuildValue("(OL)", run.queues[i].cursor, (long long)run.queues[i].first);
        int bad = !pair || PyList_Append(taken, pair) < 0;
        Py_XDECREF(pair);
        if (bad) goto done;
    }
    result = Py_BuildValue("(ny#Oy#On)", count, run.records.data, run.records.length, run.entries,
                           run.answers.data ? run.answers.data : "", run.answers.length, taken, run.messages);
    if (result && !move_cursors(&run)) Py_CLEAR(result);
done:
    for (int i = 0; i < run.queue_count; i++) {
        Py_DECREF(run.queues[i].cursor);
        Py_DECREF(run.queues[i].before);
    }
    Py_XDECREF(run.target);
    Py_XDECREF(run.stored_name);
    Py_XDECREF(taken);
    Py_XDECREF(run.entries);
    for (int i = 0; i < RULE_COUNT; i++) Py_XDECREF(run.rules.values[i]);
    PyMem_Free(run.records.data);
    PyMem_Free(run.answers.data);
    for (int i = 0; i < 2; i++) {
        let_go(&readings[i]);
        PyMem_Free(readings[i].scratch.data);
    }
    return result;
}
