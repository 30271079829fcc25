/* Headers of ordinary sends, JSON and binary. All others are left to the handlers. */
#include "core.h"

/* Returns the place of a field; NULL if it is unknown. KNOWN_FIELDS in protocol/plain_sends.py lists the
 * known ones, with the reason. */
static Text *known_field(Send *send, Text key) {
    if (key.length == 1) return key.at[0] >= 'a' && key.at[0] <= 'n' ? &send->letter[key.at[0] - 'a'] : NULL;
    if (IS_LITERAL(key, "AccessKey")) return &send->access_key;
    if (IS_LITERAL(key, "SecurityToken")) return &send->security_token;
    if (IS_LITERAL(key, "Signature")) return &send->signature;
    return NULL;
}

static int keep_field(Send *send, Text key, Text value) {
    Text *field = known_field(send, key);
    if (!field || field->at) return 0; /* unknown, or present twice: left to the handlers */
    *field = value;
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
        /* An empty one is Java's null. */
        if (key.length && value.length && !keep_field(send, key, value)) return 0;
    }
    return 1;
}

/* Reads a JSON text without escapes, only ASCII. On success `at` points after its closing quote. */
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

/* Reads the properties: a JSON text whose separators are escapes, unescaped into scratch, which is large
 * enough. */
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
        if (!keep_field(send, key, value) || p >= end) return 0;
        if (*p == ',') {
            p++;
            continue;
        }
        if (*p != '}') return 0;
        *at = p + 1;
        return 1;
    }
}

/* Reads JSON as Java writes it: without blanks, the code first. Any other form is left to the handlers. */
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

int read_send(int encoding, const char *header, Py_ssize_t length, char *scratch, Send *send) {
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
