/* The hot core: what a broker does for every message it stores, as plain functions over bytes and numbers.
 *
 * Each function here has a twin of the same name in Python, beside those who call it (look for
 * kerolox.compiled), which says what it does and takes its place where there is no compiler. The tests run
 * both on the same input. Layouts are in protocol/FRAME.md, protocol/MESSAGE.md and store/FORMAT.md.
 *
 * Rules: nothing is trusted that came over the wire; every length is checked against what is there before it is
 * used. A function changes nothing outside before it can no longer fail. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __linux__
#include <errno.h>
#include <sys/uio.h>
#endif

enum {
    JSON = 0,
    BINARY = 1,
    SEND = 310,         /* SEND_MESSAGE_V2 */
    SEND_BATCH = 320,   /* SEND_BATCH_MESSAGE */
    FLAG_ANSWER = 1,
    FLAG_ONE_WAY = 2,
    BLANK_BYTES = 8,    /* what must stay free at the end of a log file */
    ITEM_BYTES = 22,    /* what a batch needs for a message beside body and properties */
    QUEUES_MAX = 64,    /* different queues in one run */
    HEADER_BYTES_MAX = 1024 * 1024,
    PROPERTIES_MAX = 32767,
    BATCH_COUNT_MAX = 65536,
    SYS_FLAGS_PLAIN = 0x703,  /* compressed, many tags, which compression: nothing that changes the way */
    SYS_FLAGS_QUEUED = 0x73B, /* also wide hosts and committed: nothing that changes the queue entry */
};

typedef struct {
    const char *at;
    Py_ssize_t length;
} Text;

/* --- bytes out ----------------------------------------------------------------------------------------- */

typedef struct {
    char *data;
    Py_ssize_t length, room;
} Buffer;

/* Room for so many more bytes; where they go, or NULL with MemoryError. */
static char *reserve(Buffer *buffer, Py_ssize_t more) {
    if (buffer->room - buffer->length < more) {
        Py_ssize_t room = buffer->room ? buffer->room * 2 : 4096;
        while (room - buffer->length < more) room *= 2;
        char *data = PyMem_Realloc(buffer->data, (size_t)room);
        if (!data) {
            PyErr_NoMemory();
            return NULL;
        }
        buffer->data = data;
        buffer->room = room;
    }
    return buffer->data + buffer->length;
}

static char *put16(char *to, uint32_t value) {
    to[0] = (char)(value >> 8);
    to[1] = (char)value;
    return to + 2;
}

static char *put32(char *to, uint32_t value) {
    to[0] = (char)(value >> 24);
    to[1] = (char)(value >> 16);
    to[2] = (char)(value >> 8);
    to[3] = (char)value;
    return to + 4;
}

static char *put64(char *to, uint64_t value) {
    return put32(put32(to, (uint32_t)(value >> 32)), (uint32_t)value);
}

static char *put_bytes(char *to, const char *from, Py_ssize_t length) {
    memcpy(to, from, (size_t)length);
    return to + length;
}

#define PUT_LITERAL(to, text) put_bytes(to, text, (Py_ssize_t)sizeof(text) - 1)

static char *put_decimal(char *to, int64_t value) {
    char digits[20];
    int count = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) *to++ = '-';
    do {
        digits[count++] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    while (count) *to++ = digits[--count];
    return to;
}

static int decimal_length(int64_t value) {
    char digits[24];
    return (int)(put_decimal(digits, value) - digits);
}

static char *put_hex16(char *to, uint64_t value) {
    for (int shift = 60; shift >= 0; shift -= 4) *to++ = "0123456789ABCDEF"[value >> shift & 15];
    return to;
}

static uint32_t get32(const char *from) {
    const unsigned char *b = (const unsigned char *)from;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static uint32_t get16(const char *from) {
    const unsigned char *b = (const unsigned char *)from;
    return (uint32_t)b[0] << 8 | b[1];
}

/* --- CRC-32, eight bytes at a time --------------------------------------------------------------------- */

static uint32_t crc_table[8][256];

static void fill_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
}

static uint32_t crc32_of(const char *data, Py_ssize_t length) {
    const unsigned char *p = (const unsigned char *)data;
    uint32_t crc = 0xFFFFFFFFu;
    for (; length >= 8; length -= 8, p += 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^ crc_table[5][low >> 16 & 255] ^
              crc_table[4][low >> 24] ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^
              crc_table[0][p[7]];
    }
    while (length-- > 0) crc = crc >> 8 ^ crc_table[0][(crc ^ *p++) & 255];
    return ~crc;
}

/* --- text ---------------------------------------------------------------------------------------------- */

static int is_ascii(const char *at, Py_ssize_t length) {
    unsigned char all = 0;
    for (Py_ssize_t i = 0; i < length; i++) all |= (unsigned char)at[i];
    return all < 0x80;
}

/* Strict UTF-8, as Python's decoder takes it: no overlong forms, no surrogates, nothing past U+10FFFF. */
static int is_utf8(const char *at, Py_ssize_t length) {
    const unsigned char *p = (const unsigned char *)at, *end = p + length;
    while (p < end) {
        unsigned char first = *p++;
        int more;
        unsigned char low = 0x80, high = 0xBF;
        if (first < 0x80) continue;
        if (first >= 0xC2 && first <= 0xDF) more = 1;
        else if (first >= 0xE0 && first <= 0xEF) {
            more = 2;
            if (first == 0xE0) low = 0xA0;
            if (first == 0xED) high = 0x9F;
        } else if (first >= 0xF0 && first <= 0xF4) {
            more = 3;
            if (first == 0xF0) low = 0x90;
            if (first == 0xF4) high = 0x8F;
        } else return 0;
        if (end - p < more || *p < low || *p > high) return 0;
        for (int i = 1; i < more; i++)
            if (p[i] < 0x80 || p[i] > 0xBF) return 0;
        p += more;
    }
    return 1;
}

static int same_text(Text text, const char *other, Py_ssize_t length) {
    return text.length == length && memcmp(text.at, other, (size_t)length) == 0;
}

#define IS_LITERAL(text, other) same_text(text, other, (Py_ssize_t)sizeof(other) - 1)

/* A number in its one usual spelling, within bounds; 0 when it is anything else. */
static int read_number(Text text, int64_t low, int64_t high, int64_t *value) {
    Py_ssize_t i = 0;
    int negative = text.length > 0 && text.at[0] == '-';
    if (negative) i++;
    Py_ssize_t digits = text.length - i;
    if (digits < 1 || digits > 18 || (text.at[i] == '0' && (digits > 1 || negative))) return 0;
    int64_t number = 0;
    for (; i < text.length; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') return 0;
        number = number * 10 + (text.at[i] - '0');
    }
    *value = negative ? -number : number;
    return *value >= low && *value <= high;
}

/* String.hashCode() of UTF-8 bytes, from the hash of what comes before. 0 with an exception when memory runs out. */
static int java_hash_of(const char *at, Py_ssize_t length, uint32_t *hash) {
    uint32_t code = *hash;
    if (is_ascii(at, length)) {
        for (Py_ssize_t i = 0; i < length; i++) code = code * 31 + (unsigned char)at[i];
        *hash = code;
        return 1;
    }
    PyObject *text = PyUnicode_DecodeUTF8(at, length, "replace");
    if (!text) return 0;
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); i++) {
        Py_UCS4 point = PyUnicode_READ(kind, data, i);
        if (point > 0xFFFF) {
            code = code * 31 + (0xD800 + ((point - 0x10000) >> 10));
            point = 0xDC00 + ((point - 0x10000) & 0x3FF);
        }
        code = code * 31 + point;
    }
    Py_DECREF(text);
    *hash = code;
    return 1;
}

/* The properties that are looked for, in one walk over the packed text; of a name given twice the last value that is
 * not empty counts. */
typedef struct {
    Text unique_key, tags, keys, wait;
} Properties;

static void read_properties(const char *at, Py_ssize_t length, Properties *found) {
    const char *end = at + length;
    memset(found, 0, sizeof *found);
    while (at < end) {
        const char *stop = memchr(at, 2, (size_t)(end - at));
        if (!stop) stop = end;
        Py_ssize_t whole = stop - at;
        Text *value = NULL;
        Py_ssize_t name = 0;
        if (whole > 9 && memcmp(at, "UNIQ_KEY\x01", 9) == 0) value = &found->unique_key, name = 9;
        else if (whole > 5 && at[4] == 1) {
            name = 5;
            if (memcmp(at, "TAGS", 4) == 0) value = &found->tags;
            else if (memcmp(at, "KEYS", 4) == 0) value = &found->keys;
            else if (memcmp(at, "WAIT", 4) == 0) value = &found->wait;
        }
        if (value) {
            value->at = at + name;
            value->length = whole - name;
        }
        at = stop + 1;
    }
}

/* Whether any of these words stands anywhere in the text. */
static int has_any(const char *at, Py_ssize_t length, PyObject *words) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(words); i++) {
        PyObject *word = PyTuple_GET_ITEM(words, i);
        Py_ssize_t size = PyBytes_GET_SIZE(word);
        if (length < size) continue;
        const char *text = PyBytes_AS_STRING(word), *from = at, *last = at + length - size;
        while (from <= last) {
            from = memchr(from, text[0], (size_t)(last - from + 1));
            if (!from) break;
            if (memcmp(from, text, (size_t)size) == 0) return 1;
            from++;
        }
    }
    return 0;
}

/* --- frames -------------------------------------------------------------------------------------------- */

static PyObject *split_frames(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "split_frames takes 2 arguments, got %zd", count);
    long long bytes_max = PyLong_AsLongLong(args[1]);
    if (bytes_max == -1 && PyErr_Occurred()) return NULL;
    Py_buffer source;
    if (PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0) return NULL;
    const char *data = source.buf;
    Py_ssize_t end = source.len, position = 0, needed = 8;
    PyObject *frames = PyList_New(0);
    if (!frames) goto failed;
    while (end - position >= 8) {
        int64_t length = (int32_t)get32(data + position);
        uint32_t mark = get32(data + position + 4);
        int64_t header_length = mark & 0xFFFFFF;
        if (length + 4 > bytes_max || length < 4 + header_length || header_length > HEADER_BYTES_MAX) {
            needed = -1;
            break;
        }
        if (length + 4 > end - position) {
            needed = (Py_ssize_t)(length + 4);
            break;
        }
        const char *header = data + position + 8;
        PyObject *frame = PyTuple_New(3);
        if (!frame) goto failed;
        PyTuple_SET_ITEM(frame, 0, PyLong_FromLong((long)(mark >> 24)));
        PyTuple_SET_ITEM(frame, 1, PyBytes_FromStringAndSize(header, (Py_ssize_t)header_length));
        PyTuple_SET_ITEM(
            frame, 2, PyBytes_FromStringAndSize(header + header_length, (Py_ssize_t)(length - 4 - header_length)));
        int bad = !PyTuple_GET_ITEM(frame, 0) || !PyTuple_GET_ITEM(frame, 1) || !PyTuple_GET_ITEM(frame, 2) ||
                  PyList_Append(frames, frame) < 0;
        Py_DECREF(frame);
        if (bad) goto failed;
        position += (Py_ssize_t)length + 4;
    }
    PyBuffer_Release(&source);
    return Py_BuildValue("(Nnn)", frames, position, needed);
failed:
    Py_XDECREF(frames);
    PyBuffer_Release(&source);
    return NULL;
}

/* --- headers of sends ---------------------------------------------------------------------------------- */

/* What a send says, as far as it is a usual one. Fields are named by their letters on the wire. */
typedef struct {
    int code, encoding;
    int32_t opaque, flag;
    Text letter[14]; /* a to n; at is NULL when absent */
    Text topic, properties;
    int32_t queue_id, sys_flag, message_flag, reconsume_times;
    int64_t born_timestamp;
} Send;

static int keep_letter(Send *send, Text key, Text value) {
    if (key.length != 1 || key.at[0] < 'a' || key.at[0] > 'n') return 1;
    Text *letter = &send->letter[key.at[0] - 'a'];
    if (letter->at) return 0; /* given twice: others decide */
    *letter = value;
    return 1;
}

static int read_binary_header(const char *at, Py_ssize_t length, Send *send) {
    if (length < 21) return 0;
    send->code = (int16_t)get16(at);
    send->opaque = (int32_t)get32(at + 5);
    send->flag = (int32_t)get32(at + 9);
    if (get32(at + 13) != 0) return 0; /* a remark */
    int64_t fields = (int32_t)get32(at + 17);
    if (fields < 0 || fields > length - 21) return 0;
    at += 21;
    const char *end = at + fields;
    while (at < end) {
        if (end - at < 2) return 0;
        int64_t key_length = (int16_t)get16(at);
        if (key_length < 0 || end - at < 2 + key_length + 4) return 0;
        Text key = {at + 2, (Py_ssize_t)key_length};
        at += 2 + key_length;
        int64_t value_length = (int32_t)get32(at);
        at += 4;
        if (value_length < 0 || value_length > end - at) return 0;
        Text value = {at, (Py_ssize_t)value_length};
        at += value_length;
        int properties = key.length == 1 && key.at[0] == 'i';
        if (!is_ascii(key.at, key.length) || !(properties ? is_utf8 : is_ascii)(value.at, value.length)) return 0;
        /* Empty is Java's null. */
        if (key.length && value.length && !keep_letter(send, key, value)) return 0;
    }
    return 1;
}

/* A JSON text without escapes, ASCII only. On success at stands behind its closing quote. */
static int read_plain_string(const char **at, const char *end, Text *text) {
    const char *p = *at;
    if (p >= end || *p != '"') return 0;
    text->at = ++p;
    while (p < end && *p != '"') {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c >= 0x80 || c == '\\') return 0;
        p++;
    }
    if (p >= end) return 0;
    text->length = p - text->at;
    *at = p + 1;
    return 1;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The properties: a JSON text whose separators are escapes, unescaped into scratch, which is large enough. */
static int read_escaped_string(const char **at, const char *end, char *scratch, Text *text) {
    const char *p = *at;
    char *to = scratch;
    int ascii = 1;
    if (p >= end || *p != '"') return 0;
    p++;
    while (p < end && *p != '"') {
        unsigned char c = (unsigned char)*p++;
        if (c < 0x20) return 0;
        if (c >= 0x80) ascii = 0;
        if (c != '\\') {
            *to++ = (char)c;
            continue;
        }
        if (p >= end) return 0;
        switch (*p++) {
            case '"': *to++ = '"'; break;
            case '\\': *to++ = '\\'; break;
            case '/': *to++ = '/'; break;
            case 'b': *to++ = '\b'; break;
            case 'f': *to++ = '\f'; break;
            case 'n': *to++ = '\n'; break;
            case 'r': *to++ = '\r'; break;
            case 't': *to++ = '\t'; break;
            case 'u': {
                if (end - p < 4 || p[0] != '0' || p[1] != '0') return 0;
                int high = hex_digit(p[2]), low = hex_digit(p[3]);
                if (high < 0 || high > 7 || low < 0) return 0;
                *to++ = (char)(high << 4 | low);
                p += 4;
                break;
            }
            default: return 0;
        }
    }
    if (p >= end) return 0;
    text->at = scratch;
    text->length = to - scratch;
    *at = p + 1;
    return ascii || is_utf8(scratch, text->length);
}

static int read_json_number(const char **at, const char *end, int32_t *value) {
    const char *p = *at;
    Text text = {p, 0};
    while (p < end && (*p == '-' || (*p >= '0' && *p <= '9'))) p++;
    text.length = p - text.at;
    *at = p;
    int64_t number;
    if (!read_number(text, INT32_MIN, INT32_MAX, &number)) return 0;
    *value = (int32_t)number;
    return 1;
}

static int read_json_fields(const char **at, const char *end, char *scratch, Send *send) {
    const char *p = *at;
    if (p >= end || *p++ != '{') return 0;
    for (;;) {
        Text key, value;
        if (!read_plain_string(&p, end, &key) || p >= end || *p++ != ':') return 0;
        int properties = key.length == 1 && key.at[0] == 'i' && !send->letter['i' - 'a'].at;
        if (!(properties ? read_escaped_string(&p, end, scratch, &value) : read_plain_string(&p, end, &value)))
            return 0;
        if (!keep_letter(send, key, value) || p >= end) return 0;
        if (*p == ',') {
            p++;
            continue;
        }
        if (*p != '}') return 0;
        *at = p + 1;
        return 1;
    }
}

/* As Java writes it: no blanks, the code first. Whatever is written otherwise is left to others. */
static int read_json_header(const char *at, Py_ssize_t length, char *scratch, Send *send) {
    const char *end = at + length;
    enum { SEEN_CODE = 1, SEEN_FIELDS = 2, SEEN_FLAG = 4, SEEN_OPAQUE = 8, SEEN_VERSION = 16, SEEN_LANGUAGE = 32, SEEN_TYPE = 64 };
    int seen = 0;
    if (at >= end || *at++ != '{') return 0;
    for (;;) {
        Text key, value;
        int32_t number;
        int bit;
        if (!read_plain_string(&at, end, &key) || at >= end || *at++ != ':') return 0;
        if (IS_LITERAL(key, "extFields")) {
            bit = SEEN_FIELDS;
            if (seen & bit || !read_json_fields(&at, end, scratch, send)) return 0;
        } else if (IS_LITERAL(key, "language")) {
            bit = SEEN_LANGUAGE;
            if (!read_plain_string(&at, end, &value)) return 0;
        } else if (IS_LITERAL(key, "serializeTypeCurrentRPC")) {
            bit = SEEN_TYPE;
            if (!read_plain_string(&at, end, &value)) return 0;
        } else {
            if (!read_json_number(&at, end, &number)) return 0;
            if (IS_LITERAL(key, "code")) send->code = number, bit = SEEN_CODE;
            else if (IS_LITERAL(key, "opaque")) send->opaque = number, bit = SEEN_OPAQUE;
            else if (IS_LITERAL(key, "flag")) send->flag = number, bit = SEEN_FLAG;
            else if (IS_LITERAL(key, "version")) bit = SEEN_VERSION;
            else return 0;
        }
        if (seen & bit || at >= end) return 0;
        seen |= bit;
        if (*at == ',') {
            at++;
            continue;
        }
        const int needed = SEEN_CODE | SEEN_FIELDS | SEEN_OPAQUE;
        return *at == '}' && at + 1 == end && (seen & needed) == needed;
    }
}

static int read_int32(Text text, int32_t *value) {
    int64_t number;
    if (!read_number(text, INT32_MIN, INT32_MAX, &number)) return 0;
    *value = (int32_t)number;
    return 1;
}

static int absent_or_bool(Text text) {
    return !text.at || IS_LITERAL(text, "false") || IS_LITERAL(text, "true");
}

/* The header of a usual send; 0 for everything else. */
static int read_send(int encoding, const char *header, Py_ssize_t length, char *scratch, Send *send) {
    memset(send, 0, sizeof *send);
    send->encoding = encoding;
    if (encoding == JSON) {
        if (!read_json_header(header, length, scratch, send)) return 0;
    } else if (encoding != BINARY || !read_binary_header(header, length, send)) return 0;
    if ((send->code != SEND && send->code != SEND_BATCH) || send->flag & FLAG_ANSWER) return 0;
    const Text *letter = send->letter;
#define LETTER(c) letter[(c) - 'a']
    int32_t number;
    if (!LETTER('a').at || !LETTER('b').at || !LETTER('c').at || !LETTER('d').at || !LETTER('e').at ||
        !LETTER('f').at || !LETTER('g').at || !LETTER('h').at || !LETTER('i').at)
        return 0;
    if (!read_int32(LETTER('d'), &number) || !read_int32(LETTER('e'), &send->queue_id) ||
        !read_int32(LETTER('f'), &send->sys_flag) ||
        !read_number(LETTER('g'), INT64_MIN, INT64_MAX, &send->born_timestamp) ||
        !read_int32(LETTER('h'), &send->message_flag))
        return 0;
    if (LETTER('j').at && !read_int32(LETTER('j'), &send->reconsume_times)) return 0;
    if (LETTER('l').at && !read_int32(LETTER('l'), &number)) return 0;
    if (!absent_or_bool(LETTER('k')) || !absent_or_bool(LETTER('m'))) return 0;
    if (send->code == SEND && LETTER('m').at && LETTER('m').length == 4) return 0; /* a batch by its flag */
    send->topic = LETTER('b');
    send->properties = LETTER('i');
#undef LETTER
    return send->queue_id >= 0 && !(send->sys_flag & ~SYS_FLAGS_PLAIN);
}

/* --- storing sends ------------------------------------------------------------------------------------- */

/* A queue that got messages in this run: they are given their numbers here, and the cursor hears of it at the end. */
typedef struct {
    PyObject *cursor;
    int32_t queue_id;
    int64_t first, next;
} Queue;

/* One run of sends on its way into the log. */
typedef struct {
    /* given */
    const char *store_host, *born_host, *added, *id_prefix, *json_after, *json_end, *binary_head, *binary_tail;
    Py_ssize_t store_host_length, born_host_length, added_length, id_prefix_length, json_after_length,
        json_end_length, binary_head_length, binary_tail_length;
    PyObject *stops; /* words in properties that others have to look at */
    PyObject *park;  /* who says where messages go that are to come later; or None */
    int wait_matters;
    int64_t bytes_max, file_end, now_ms;
    PyObject *now;
    /* of the topic */
    PyObject *topic_name, *field, *cursors;
    PyObject *stored_name; /* of the topic the messages are stored under: that, or where they are parked */
    /* made */
    int64_t end;
    Buffer records, answers;
    PyObject *entries;
    Queue queues[QUEUES_MAX];
    int queue_count;
    Py_ssize_t messages;
} Run;

static PyObject *next_offset_name;

static Queue *add_queue(Run *run, int32_t queue_id, PyObject *cursor) {
    PyObject *next = PyObject_GetAttr(cursor, next_offset_name);
    if (!next) return NULL;
    long long offset = PyLong_AsLongLong(next);
    Py_DECREF(next);
    if (offset == -1 && PyErr_Occurred()) return NULL;
    Queue *queue = &run->queues[run->queue_count++];
    *queue = (Queue){Py_NewRef(cursor), queue_id, offset, offset};
    return queue;
}

/* The queue of a send; NULL when it is not among those known, or (with an exception) an error. */
static Queue *queue_of(Run *run, int32_t queue_id) {
    for (int i = 0; i < run->queue_count; i++)
        if (run->queues[i].queue_id == queue_id) return &run->queues[i];
    if (run->queue_count == QUEUES_MAX) return NULL;
    PyObject *key = PyLong_FromLong(queue_id);
    if (!key) return NULL;
    PyObject *cursor = PyDict_GetItemWithError(run->cursors, key);
    Py_DECREF(key);
    if (!cursor) return NULL;
    return add_queue(run, queue_id, cursor);
}

static Py_ssize_t record_overhead(const Run *run) {
    return 74 + run->born_host_length + run->store_host_length + PyBytes_GET_SIZE(run->field);
}

/* Put one record and its entry. The properties are two pieces, with what separates them between. */
static int put_record(Run *run, Queue *queue, const Send *send, int32_t message_flag, Text body, Text own,
                      int separated, Text added) {
    Py_ssize_t properties_length = own.length + separated + added.length;
    Py_ssize_t size = record_overhead(run) + body.length + properties_length;
    char *to = reserve(&run->records, size);
    if (!to) return 0;
    uint32_t hosts = (run->born_host_length == 20 ? 0x10u : 0) | (run->store_host_length == 20 ? 0x20u : 0);
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
    to = put_bytes(to, run->store_host, run->store_host_length);
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

/* The answer to a send whose messages begin at these places in the log (sizes of all but the last are known from the
 * records). */
static int put_answer(Run *run, const Send *send, int64_t queue_offset, Text unique, const int64_t *places,
                      Py_ssize_t count, Text handle) {
    if (send->flag & FLAG_ONE_WAY) return 1;
    Py_ssize_t ids = count * (run->id_prefix_length + 17) - 1;
    char *start = reserve(&run->answers, 512 + ids + unique.length + handle.length + run->json_after_length + run->json_end_length +
                                             run->binary_head_length + run->binary_tail_length);
    if (!start) return 0;
    char *header = start + 8, *to = header;
    if (send->encoding == JSON) to = PUT_LITERAL(to, "{\"code\":0,\"extFields\":{\"msgId\":\"");
    else {
        to = put_bytes(to, run->binary_head, run->binary_head_length);
        to = put32(to, (uint32_t)send->opaque);
        to = put32(to, FLAG_ANSWER);
        to = put32(to, 0); /* no remark */
        to = put32(to, (uint32_t)(7 + 4 + ids + 9 + 4 + decimal_length(send->queue_id) + 13 + 4 +
                                  decimal_length(queue_offset) + (unique.length ? 15 + 4 + unique.length : 0) +
                                  (handle.length ? 14 + 4 + handle.length : 0) + run->binary_tail_length));
        to = PUT_LITERAL(to, "\x00\x05msgId");
        to = put32(to, (uint32_t)ids);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i) *to++ = ',';
        to = put_bytes(to, run->id_prefix, run->id_prefix_length);
        to = put_hex16(to, (uint64_t)places[i]);
    }
    if (send->encoding == JSON) {
        to = PUT_LITERAL(to, "\",\"queueId\":\"");
        to = put_decimal(to, send->queue_id);
        to = PUT_LITERAL(to, "\",\"queueOffset\":\"");
        to = put_decimal(to, queue_offset);
        if (unique.length) {
            to = PUT_LITERAL(to, "\",\"transactionId\":\"");
            to = put_bytes(to, unique.at, unique.length);
        }
        if (handle.length) {
            to = PUT_LITERAL(to, "\",\"recallHandle\":\"");
            to = put_bytes(to, handle.at, handle.length);
        }
        to = put_bytes(to, run->json_after, run->json_after_length);
        to = put_decimal(to, send->opaque);
        to = put_bytes(to, run->json_end, run->json_end_length);
    } else {
        to = PUT_LITERAL(to, "\x00\x07queueId");
        to = put32(to, (uint32_t)decimal_length(send->queue_id));
        to = put_decimal(to, send->queue_id);
        to = PUT_LITERAL(to, "\x00\x0bqueueOffset");
        to = put32(to, (uint32_t)decimal_length(queue_offset));
        to = put_decimal(to, queue_offset);
        if (unique.length) {
            to = PUT_LITERAL(to, "\x00\x0dtransactionId");
            to = put32(to, (uint32_t)unique.length);
            to = put_bytes(to, unique.at, unique.length);
        }
        if (handle.length) {
            to = PUT_LITERAL(to, "\x00\x0crecallHandle");
            to = put32(to, (uint32_t)handle.length);
            to = put_bytes(to, handle.at, handle.length);
        }
        to = put_bytes(to, run->binary_tail, run->binary_tail_length);
    }
    put32(start, (uint32_t)(4 + (to - header)));
    put32(start + 4, (uint32_t)send->encoding << 24 | (uint32_t)(to - header));
    run->answers.length += to - start;
    return 1;
}

/* Whether a key needs no escapes: letters, digits and what else is usual in names. */
static int is_simple(Text text) {
    for (Py_ssize_t i = 0; i < text.length; i++) {
        char c = text.at[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_'))
            return 0;
    }
    return text.length > 0;
}

/* Whether messages stored under this topic belong into the run: all of a run are stored under one. */
static int goes_on(Run *run, PyObject *topic) {
    if (!run->stored_name) {
        run->stored_name = Py_NewRef(topic);
        return 1;
    }
    return PyBytes_GET_SIZE(topic) == PyBytes_GET_SIZE(run->stored_name) &&
           memcmp(PyBytes_AS_STRING(topic), PyBytes_AS_STRING(run->stored_name), (size_t)PyBytes_GET_SIZE(topic)) == 0;
}

/* 1 taken, 0 left to others, -1 an error. */
static int take_single(Run *run, const Send *send, Text body, Text unique) {
    Text own = send->properties, added = {run->added, run->added_length};
    int separated = own.length && added.length && own.at[own.length - 1] != 2;
    Py_ssize_t properties_length = own.length + separated + added.length;
    int64_t size = (int64_t)record_overhead(run) + body.length + properties_length;
    if (!body.length || properties_length > PROPERTIES_MAX || size > run->bytes_max ||
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

/* Put a message where those wait that are to come later; parked says where. */
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
    if (own.length > PROPERTIES_MAX || size > run->bytes_max || run->end + size + BLANK_BYTES > run->file_end) return 0;
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

/* A message that is to come later, or something else for others. */
static int take_later(Run *run, const Send *send, Text body, Text unique) {
    if (run->park == Py_None || send->code != SEND || !body.length) return 0;
    PyObject *key = PyLong_FromLong(send->queue_id);
    int known = key ? PyDict_Contains(run->cursors, key) : -1;
    Py_XDECREF(key);
    if (known <= 0) return known;
    Text own = send->properties;
    int separated = own.length && run->added_length && own.at[own.length - 1] != 2;
    PyObject *whole = PyBytes_FromStringAndSize(NULL, own.length + separated + run->added_length);
    if (!whole) return -1;
    char *to = put_bytes(PyBytes_AS_STRING(whole), own.at, own.length);
    if (separated) *to++ = 2;
    put_bytes(to, run->added, run->added_length);
    PyObject *parked = PyObject_CallFunction(run->park, "OiN", run->topic_name, (int)send->queue_id, whole);
    if (!parked) return -1;
    int took = parked == Py_None ? 0 : put_parked(run, send, body, unique, parked);
    Py_DECREF(parked);
    return took;
}

/* The item of a batch that begins at at: its flag, body and properties, and where the next begins; 0 if broken. */
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
    if (!count || total > run->bytes_max || run->end + total + BLANK_BYTES > run->file_end) return 0;
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

/* 1 taken, 0 left to others, -1 an error. */
static int take_frame(Run *run, PyObject *frame, PyObject *targets, Buffer *scratch) {
    if (!PyTuple_Check(frame) || PyTuple_GET_SIZE(frame) != 3 || !PyLong_Check(PyTuple_GET_ITEM(frame, 0)) ||
        !PyBytes_Check(PyTuple_GET_ITEM(frame, 1)) || !PyBytes_Check(PyTuple_GET_ITEM(frame, 2))) {
        PyErr_SetString(PyExc_TypeError, "a frame is a tuple of encoding, header and body");
        return -1;
    }
    long encoding = PyLong_AsLong(PyTuple_GET_ITEM(frame, 0));
    if (encoding == -1 && PyErr_Occurred()) return -1;
    PyObject *header = PyTuple_GET_ITEM(frame, 1), *content = PyTuple_GET_ITEM(frame, 2);
    Send send;
    scratch->length = 0;
    char *room = reserve(scratch, PyBytes_GET_SIZE(header) + 1);
    if (!room) return -1;
    if (encoding != JSON && encoding != BINARY) return 0;
    if (!read_send((int)encoding, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header), room, &send)) return 0;
    if (!run->topic_name) {
        PyObject *topic = PyBytes_FromStringAndSize(send.topic.at, send.topic.length);
        if (!topic) return -1;
        PyObject *target = PyDict_GetItemWithError(targets, topic);
        Py_DECREF(topic);
        if (!target) return PyErr_Occurred() ? -1 : 0;
        if (!PyTuple_Check(target) ||
            !PyArg_ParseTuple(target, "SSO!", &run->topic_name, &run->field, &PyDict_Type, &run->cursors)) {
            run->topic_name = NULL;
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a target is a tuple");
            return -1;
        }
    }
    if (!same_text(send.topic, PyBytes_AS_STRING(run->topic_name), PyBytes_GET_SIZE(run->topic_name))) return 0;
    Properties found;
    read_properties(send.properties.at, send.properties.length, &found);
    /* A batch need not have a key of its own, and ours have none. */
    if (!is_simple(found.unique_key) && (send.code == SEND || found.unique_key.length)) return 0;
    if (run->wait_matters && IS_LITERAL(found.wait, "false")) return 0;
    Text body = {PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content)};
    if (has_any(send.properties.at, send.properties.length, run->stops))
        return take_later(run, &send, body, found.unique_key);
    return (send.code == SEND ? take_single : take_batch)(run, &send, body, found.unique_key);
}

static PyObject *take_sends(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 9) return PyErr_Format(PyExc_TypeError, "take_sends takes 9 arguments, got %zd", arg_count);
    PyObject *frames = args[0], *targets = args[2], *setting = args[3], *born_host = args[4];
    if (!PyList_Check(frames) || !PyDict_Check(targets) || !PyTuple_Check(setting) || !PyBytes_Check(born_host) ||
        !PyLong_Check(args[8])) {
        PyErr_SetString(PyExc_TypeError, "take_sends: list, int, dict, tuple, bytes and numbers expected");
        return NULL;
    }
    PyObject *region_id, *trace_on; /* are in the answers' tails already */
    Run run;
    memset(&run, 0, offsetof(Run, queues));
    run.queue_count = 0;
    run.messages = 0;
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    run.bytes_max = PyLong_AsLongLong(args[5]);
    run.end = PyLong_AsLongLong(args[6]);
    run.file_end = PyLong_AsLongLong(args[7]);
    run.now = args[8];
    run.now_ms = PyLong_AsLongLong(run.now);
    if (PyErr_Occurred()) return NULL;
    if (!PyArg_ParseTuple(setting, "y#y#y#y#y#y#y#O!pOOO", &run.store_host, &run.store_host_length, &run.added,
                          &run.added_length, &run.id_prefix, &run.id_prefix_length, &run.json_after,
                          &run.json_after_length, &run.json_end, &run.json_end_length, &run.binary_head,
                          &run.binary_head_length, &run.binary_tail, &run.binary_tail_length, &PyTuple_Type,
                          &run.stops, &run.wait_matters, &region_id, &trace_on, &run.park))
        return NULL;
    run.born_host = PyBytes_AS_STRING(born_host);
    run.born_host_length = PyBytes_GET_SIZE(born_host);
    if ((run.born_host_length != 8 && run.born_host_length != 20) ||
        (run.store_host_length != 8 && run.store_host_length != 20) || at < 0) {
        PyErr_SetString(PyExc_ValueError, "take_sends: a host has 8 or 20 bytes, a place is not negative");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(run.stops); i++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(run.stops, i)) || !PyBytes_GET_SIZE(PyTuple_GET_ITEM(run.stops, i))) {
            PyErr_SetString(PyExc_TypeError, "take_sends: the words to look for are bytes");
            return NULL;
        }
    Buffer scratch = {0};
    PyObject *result = NULL, *taken = NULL;
    Py_ssize_t count = 0;
    run.entries = PyList_New(0);
    if (!run.entries) goto done;
    for (; at + count < PyList_GET_SIZE(frames); count++) {
        int took = take_frame(&run, PyList_GET_ITEM(frames, at + count), targets, &scratch);
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
    if (!result) goto done;
    for (int i = 0; i < run.queue_count; i++) {
        PyObject *next = PyLong_FromLongLong(run.queues[i].next);
        if (!next || PyObject_SetAttr(run.queues[i].cursor, next_offset_name, next) < 0) {
            Py_XDECREF(next);
            Py_CLEAR(result);
            goto done;
        }
        Py_DECREF(next);
    }
done:
    for (int i = 0; i < run.queue_count; i++) Py_DECREF(run.queues[i].cursor);
    Py_XDECREF(run.stored_name);
    Py_XDECREF(taken);
    Py_XDECREF(run.entries);
    PyMem_Free(run.records.data);
    PyMem_Free(run.answers.data);
    PyMem_Free(scratch.data);
    return result;
}

/* --- what follows the log: entries of queues and of the key index ---------------------------------------- */

/* An entry of the log as the dispatcher hands it on. */
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

static PyObject *queue_runs(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
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
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(stops); i++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(stops, i)) || !PyBytes_GET_SIZE(PyTuple_GET_ITEM(stops, i))) {
            PyErr_SetString(PyExc_TypeError, "queue_runs: the words to look for are bytes");
            return NULL;
        }
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
            result = Py_NewRef(Py_None); /* something that needs care */
            goto done;
        }
        if (!group) {
            group = &groups[group_count++];
            *group = (Group){entry.topic, entry.queue_id, entry.queue_offset, entry.queue_offset, {0}};
        }
        Properties found;
        read_properties(PyBytes_AS_STRING(entry.properties), PyBytes_GET_SIZE(entry.properties), &found);
        uint32_t code = 0;
        if (found.tags.at && !java_hash_of(found.tags.at, found.tags.length, &code)) goto done;
        char *to = reserve(&group->packed, 20);
        if (!to) goto done;
        to = put64(to, (uint64_t)entry.physical);
        to = put32(to, (uint32_t)entry.size);
        put64(to, (uint64_t)(int64_t)(int32_t)code);
        group->packed.length += 20;
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
    for (int k = 0; k < group_count; k++) PyMem_Free(groups[k].packed.data);
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

static PyObject *key_items(PyObject *module, PyObject *entries) {
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
            topic = entry.topic;
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
    return wanted;
failed:
    Py_DECREF(wanted);
    return NULL;
}

static int64_t slot_of(int64_t hash, int64_t slot_count) {
    int64_t slot = hash % slot_count;
    return slot < 0 ? slot + slot_count : slot;
}

static PyObject *index_entries(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
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
    /* First all that may fail. */
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
        /* See index_file.py: the table begins 40 bytes into its first page. */
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

/* --- what a consumer does for every message it pulls ---------------------------------------------------- */

enum { RECORD_MIN = 91, RECORD_ARGS = 17, BORN_WIDE = 0x10, STORE_WIDE = 0x20 };

static int64_t get64(const char *from) {
    return (int64_t)((uint64_t)get32(from) << 32 | get32(from + 4));
}

/* Bytes like these: the ones made before, if they are the same, for hosts and topics seldom change. */
static int keep_bytes(PyObject **kept, const char *at, Py_ssize_t length) {
    if (*kept && PyBytes_GET_SIZE(*kept) == length && !memcmp(PyBytes_AS_STRING(*kept), at, (size_t)length)) return 0;
    PyObject *made = PyBytes_FromStringAndSize(at, length);
    if (!made) return -1;
    Py_XSETREF(*kept, made);
    return 1;
}

/* What the messages of one answer share. */
typedef struct {
    PyObject *topic_bytes, *topic, *born_host, *store_host;
} Shared;

/* One record of at most `left` bytes: 1 and a message, 0 if it is none, -1 with an error. */
static int read_record(const char *at, Py_ssize_t left, PyObject *make, PyObject *broker, Shared *shared,
                       int32_t *size_found, int32_t *flags, PyObject **message) {
    if (left < RECORD_MIN) return 0;
    int32_t size = (int32_t)get32(at), sys_flag = (int32_t)get32(at + 36);
    uint32_t magic = get32(at + 4);
    int wide_topic = magic == 0xDAA320AB;
    if (size < RECORD_MIN || size > left || (!wide_topic && magic != 0xDAA320A7)) return 0;
    Py_ssize_t born_length = sys_flag & BORN_WIDE ? 20 : 8, store_length = sys_flag & STORE_WIDE ? 20 : 8;
    const char *end = at + size, *born = at + 48, *store = born + born_length + 8, *rest = store + store_length;
    const char *body = rest + 16;
    /* Beside the body: a topic length of one or two bytes, and a properties length of two. */
    if (end - body < 3 + wide_topic) return 0;
    int32_t body_length = (int32_t)get32(rest + 12);
    if (body_length < 0 || body_length > end - body - 3 - wide_topic) return 0;
    const char *topic = body + body_length;
    if ((unsigned char)*topic > 127) return 0;
    Py_ssize_t topic_length = wide_topic ? (Py_ssize_t)get16(topic) : (Py_ssize_t)(unsigned char)*topic;
    topic += 1 + wide_topic;
    if (topic_length > end - topic - 2) return 0;
    const char *properties = topic + topic_length + 2;
    if ((unsigned char)properties[-2] > 127 || (Py_ssize_t)get16(properties - 2) != end - properties) return 0;

    int changed = keep_bytes(&shared->topic_bytes, topic, topic_length);
    if (changed < 0 || keep_bytes(&shared->born_host, born, born_length) < 0 ||
        keep_bytes(&shared->store_host, store, store_length) < 0) return -1;
    if (changed) {
        PyObject *text = PyUnicode_DecodeUTF8(topic, topic_length, "replace");
        if (!text) return -1;
        Py_XSETREF(shared->topic, text);
    }
    PyObject *args[RECORD_ARGS + 1] = {NULL};
    PyObject **values = args + 1; /* a place before them for who is called */
    values[0] = shared->topic;
    values[1] = PyBytes_FromStringAndSize(body, body_length);
    values[2] = PyLong_FromLong((int32_t)get32(at + 12));
    values[3] = PyLong_FromLongLong(get64(at + 20));
    values[4] = PyLong_FromLongLong(get64(at + 28));
    values[5] = PyBytes_FromStringAndSize(properties, end - properties);
    values[6] = PyLong_FromLong((int32_t)get32(at + 16));
    values[7] = PyLong_FromLong(sys_flag);
    values[8] = PyLong_FromLongLong(get64(at + 40));
    values[9] = shared->born_host;
    values[10] = PyLong_FromLongLong(get64(store - 8));
    values[11] = shared->store_host;
    values[12] = PyLong_FromLong((int32_t)get32(rest));
    values[13] = PyLong_FromLongLong(get64(rest + 4));
    values[14] = PyLong_FromLong((int32_t)get32(at + 8));
    values[15] = PyLong_FromLong(size);
    values[16] = broker;
    int complete = 1;
    for (int i = 0; i < RECORD_ARGS; i++) complete &= values[i] != NULL;
    *message = complete ? PyObject_Vectorcall(make, values, RECORD_ARGS | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL) : NULL;
    for (int i = 0; i < RECORD_ARGS; i++) {
        if (i != 0 && i != 9 && i != 11 && i != 16) Py_XDECREF(values[i]);
    }
    *size_found = size;
    *flags |= sys_flag;
    return *message ? 1 : -1;
}

static PyObject *read_records(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
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

/* --- where records begin ----------------------------------------------------------------------------------- */

static PyObject *record_starts(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
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

/* --- what a filter looks at ------------------------------------------------------------------------------ */

/* The packed properties of the record at `at`, which has `size` bytes; NULL if it is not whole. */
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

/* The values of these properties of a record, each with its end; a new reference, NULL with or without an error. */
static PyObject *values_of(const char *record, Py_ssize_t size, PyObject *names) {
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
            if (value_length <= 0 || item[name_length] != 1) continue; /* of two values the last that is one */
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

static PyObject *property_values(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
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

enum { SIFT_DONE, SIFT_ELSEWHERE, SIFT_UNKNOWN, SIFT_ODD, QUEUE_ENTRY_BYTES = 20 };

static PyObject *sift(PyObject *module, PyObject *args) {
    PyObject *entries, *block, *names, *answers, *taken;
    Py_ssize_t number, count, count_max;
    long long block_at, floor_, size_bytes, bytes_max;
    if (!PyArg_ParseTuple(args, "SnSLLO!O!O!nnLL", &entries, &number, &block, &block_at, &floor_, &PyTuple_Type,
                          &names, &PyDict_Type, &answers, &PyList_Type, &taken, &count, &count_max, &size_bytes,
                          &bytes_max))
        return NULL;
    Py_ssize_t entry_count = PyBytes_GET_SIZE(entries) / QUEUE_ENTRY_BYTES, filtered = 0;
    long long block_end = block_at + PyBytes_GET_SIZE(block);
    int why = SIFT_DONE;
    if (number < 0) {
        PyErr_SetString(PyExc_ValueError, "sift: entries are counted from 0");
        return NULL;
    }
    for (; number < entry_count; number++) {
        const char *entry = PyBytes_AS_STRING(entries) + number * QUEUE_ENTRY_BYTES;
        long long physical = get64(entry);
        int32_t size = (int32_t)get32(entry + 8);
        if (count && (count >= count_max || size_bytes + size > bytes_max)) break;
        if (physical < floor_ || size < RECORD_MIN) {
            why = SIFT_ODD;
            break;
        }
        if (physical < block_at || physical > block_end - size) {
            why = SIFT_ELSEWHERE;
            break;
        }
        const char *record = PyBytes_AS_STRING(block) + (physical - block_at);
        PyObject *values = values_of(record, size, names);
        if (!values) {
            if (PyErr_Occurred()) return NULL;
            why = SIFT_ODD;
            break;
        }
        PyObject *answer = PyDict_GetItemWithError(answers, values);
        Py_DECREF(values);
        if (!answer) {
            if (PyErr_Occurred()) return NULL;
            why = SIFT_UNKNOWN;
            break;
        }
        if (answer != Py_True) {
            filtered++;
            continue;
        }
        PyObject *copy = PyBytes_FromStringAndSize(record, size);
        if (!copy || PyList_Append(taken, copy) < 0) {
            Py_XDECREF(copy);
            return NULL;
        }
        Py_DECREF(copy);
        count++;
        size_bytes += size;
    }
    return Py_BuildValue("(nnLni)", number, count, size_bytes, filtered, why);
}

/* --- what lies where, and reading it --------------------------------------------------------------------- */

static const long long HOLE_TAGS = 0x6B65726F6C6F7865;

static PyObject *entry_run(PyObject *module, PyObject *entries) {
    if (!PyBytes_CheckExact(entries)) {
        PyErr_SetString(PyExc_TypeError, "entry_run takes bytes");
        return NULL;
    }
    Py_ssize_t count = PyBytes_GET_SIZE(entries) / QUEUE_ENTRY_BYTES;
    const char *entry = PyBytes_AS_STRING(entries);
    long long first = 0, last = 0, end = 0, total = 0, step_max = 0;
    if (!count) Py_RETURN_NONE;
    for (Py_ssize_t number = 0; number < count; number++, entry += QUEUE_ENTRY_BYTES) {
        long long physical = get64(entry);
        int32_t size = (int32_t)get32(entry + 8);
        if (physical < 0 || size < 0 || (long long)get64(entry + 12) == HOLE_TAGS) Py_RETURN_NONE;
        if (!number) {
            first = physical;
        } else {
            if (physical <= last) Py_RETURN_NONE;
            if (physical - last > step_max) step_max = physical - last;
        }
        last = physical;
        end = physical > INT64_MAX - size ? INT64_MAX : physical + size;
        total += size;
    }
    return Py_BuildValue("(nLLLLL)", count, total, first, last, end, step_max);
}

#ifdef RWF_NOWAIT
enum { COPIED_AT_ONCE = 64 * 1024 };

/* What is in memory is copied so quickly that letting other threads run would take longer. */
static PyObject *read_now(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 3) return PyErr_Format(PyExc_TypeError, "read_now takes 3 arguments, got %zd", arg_count);
    int fd = (int)PyLong_AsLong(args[0]);
    Py_ssize_t size = PyLong_AsSsize_t(args[1]);
    long long offset = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    PyObject *data = PyBytes_FromStringAndSize(NULL, size);
    if (!data) return NULL;
    struct iovec place = {PyBytes_AS_STRING(data), (size_t)size};
    ssize_t got;
    int error;
    if (size <= COPIED_AT_ONCE) {
        got = preadv2(fd, &place, 1, offset, RWF_NOWAIT);
        error = errno;
    } else {
        Py_BEGIN_ALLOW_THREADS
        got = preadv2(fd, &place, 1, offset, RWF_NOWAIT);
        error = errno;
        Py_END_ALLOW_THREADS
    }
    if (got == size) return data;
    Py_DECREF(data);
    if (got >= 0 || error == EAGAIN || error == EINTR) Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}
#endif

/* --- the module ------------------------------------------------------------------------------------------ */

static PyMethodDef methods[] = {
    {"split_frames", (PyCFunction)(void (*)(void))split_frames, METH_FASTCALL, "See protocol/frame.py."},
    {"take_sends", (PyCFunction)(void (*)(void))take_sends, METH_FASTCALL, "See protocol/plain_sends.py."},
    {"read_records", (PyCFunction)(void (*)(void))read_records, METH_FASTCALL, "See protocol/record.py."},
    {"queue_runs", (PyCFunction)(void (*)(void))queue_runs, METH_FASTCALL, "See dispatch/queues.py."},
    {"key_items", key_items, METH_O, "See dispatch/keys.py."},
    {"index_entries", (PyCFunction)(void (*)(void))index_entries, METH_FASTCALL, "See store/index_file.py."},
    {"record_starts", (PyCFunction)(void (*)(void))record_starts, METH_FASTCALL, "See spark/records.py."},
    {"sift", sift, METH_VARARGS, "See store/sifting.py."},
    {"entry_run", entry_run, METH_O, "See store/reading.py."},
#ifdef RWF_NOWAIT
    {"read_now", (PyCFunction)(void (*)(void))read_now, METH_FASTCALL, "See store/files.py."},
#endif
    {"property_values", (PyCFunction)(void (*)(void))property_values, METH_FASTCALL, "See protocol/record.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kerolox._core", "The hot core, compiled. Its twins in Python say what it does.", -1,
    methods,               NULL,            NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void) {
    fill_crc_table();
    next_offset_name = PyUnicode_InternFromString("next_offset");
    return next_offset_name ? PyModule_Create(&definition) : NULL;
}
