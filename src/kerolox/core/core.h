/* Shared declarations of the compiled core: lengths of the formats, bytes, text and properties.
 *
 * Each function that Python calls has a twin of the same name in Python, next to its callers (search for
 * kerolox.compiled). The twin documents the function and replaces it where there is no compiler. The tests
 * run both on the same input. Layouts are in protocol/FRAME.md, protocol/MESSAGE.md and store/FORMAT.md.
 *
 * Rules: data from the wire is not trusted; every length is checked against the available bytes before it
 * is used. A function changes nothing outside before it can no longer fail, or it undoes its changes. An
 * object that is needed after a call back into Python is held by an owned reference. */
#ifndef KEROLOX_CORE_H
#define KEROLOX_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    HEADER_BYTES_MAX = 1024 * 1024,
    PROPERTIES_MAX = 32767,
    QUEUES_MAX = 64, /* different queues in one run */
    QUEUE_ENTRY_BYTES = 20,
    RECORD_MIN = 91,
    BORN_WIDE = 0x10, /* system flags: the host has 20 bytes instead of 8 */
    STORE_WIDE = 0x20,
};

typedef struct {
    const char *at;
    Py_ssize_t length;
} Text;

/* Attributes of SendRules (protocol/send_rules.py) that sends.c reads, the texts first. */
#define RULES(X)                                                                                             \
    X(store_host) X(added) X(id_prefix) X(json_after) X(json_end) X(binary_head) X(binary_tail) X(stops)     \
        X(wait_matters) X(body_bytes_max)
#define RULE_NUMBER(name) RULE_##name,
enum { RULES(RULE_NUMBER) RULE_COUNT, RULE_TEXT_COUNT = RULE_stops };

/* Objects that the module holds from its start to its end. */
typedef struct {
    PyObject *next_offset;       /* name of the attribute */
    PyObject *rules[RULE_COUNT]; /* names of attributes */
} CoreState;

/* --- bytes --------------------------------------------------------------------------------------------- */

typedef struct {
    char *data;
    Py_ssize_t length, room;
} Buffer;

/* Reserves room for more bytes; returns its place, or NULL with MemoryError. */
char *reserve(Buffer *buffer, Py_ssize_t more);

static inline char *put16(char *to, uint32_t value) {
    to[0] = (char)(value >> 8);
    to[1] = (char)value;
    return to + 2;
}

static inline char *put32(char *to, uint32_t value) {
    to[0] = (char)(value >> 24);
    to[1] = (char)(value >> 16);
    to[2] = (char)(value >> 8);
    to[3] = (char)value;
    return to + 4;
}

static inline char *put64(char *to, uint64_t value) {
    return put32(put32(to, (uint32_t)(value >> 32)), (uint32_t)value);
}

static inline char *put_bytes(char *to, const char *from, Py_ssize_t length) {
    memcpy(to, from, (size_t)length);
    return to + length;
}

#define PUT_LITERAL(to, text) put_bytes(to, text, (Py_ssize_t)sizeof(text) - 1)

static inline char *put_decimal(char *to, int64_t value) {
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

static inline int decimal_length(int64_t value) {
    char digits[24];
    return (int)(put_decimal(digits, value) - digits);
}

static inline char *put_hex16(char *to, uint64_t value) {
    for (int shift = 60; shift >= 0; shift -= 4) *to++ = "0123456789ABCDEF"[value >> shift & 15];
    return to;
}

static inline uint32_t get32(const char *from) {
    const unsigned char *b = (const unsigned char *)from;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static inline uint32_t get16(const char *from) {
    const unsigned char *b = (const unsigned char *)from;
    return (uint32_t)b[0] << 8 | b[1];
}

static inline int64_t get64(const char *from) {
    return (int64_t)((uint64_t)get32(from) << 32 | get32(from + 4));
}

/* CRC-32 as zlib computes it. */
uint32_t crc32_of(const char *data, Py_ssize_t length);
void fill_crc_table(void);

/* --- text ---------------------------------------------------------------------------------------------- */

int is_ascii(const char *at, Py_ssize_t length);

/* Returns true for strict UTF-8, as Python's decoder accepts it: no overlong forms, no surrogates, nothing
 * past U+10FFFF. */
int is_utf8(const char *at, Py_ssize_t length);

static inline int same_text(Text text, const char *other, Py_ssize_t length) {
    return text.length == length && memcmp(text.at, other, (size_t)length) == 0;
}

#define IS_LITERAL(text, other) same_text(text, other, (Py_ssize_t)sizeof(other) - 1)

/* Reads a number in canonical form, within bounds; returns 0 for anything else. */
int read_number(Text text, int64_t low, int64_t high, int64_t *value);

/* String.hashCode() of UTF-8 bytes, continuing from the hash of the preceding text. Returns 0 with an
 * exception if memory runs out. */
int java_hash_of(const char *at, Py_ssize_t length, uint32_t *hash);

/* Properties that are extracted; if a name occurs twice, the last value that is not empty counts. */
typedef struct {
    Text unique_key, tags, keys, wait;
} Properties;

/* Extracts them in one pass over the packed text. */
void read_properties(const char *at, Py_ssize_t length, Properties *found);

/* Returns true if a tuple contains only words: bytes that are not empty. Otherwise sets a TypeError. */
int are_words(PyObject *words, const char *who);

/* Returns true if the text contains any of these words. */
int has_any(const char *at, Py_ssize_t length, PyObject *words);

/* --- headers of sends
 * ------------------------------------------------------------------------------------- */

enum {
    JSON = 0,
    BINARY = 1,
    SEND = 310,       /* SEND_MESSAGE_V2 */
    SEND_BATCH = 320, /* SEND_BATCH_MESSAGE */
    FLAG_ANSWER = 1,
    FLAG_ONE_WAY = 2,
    SYS_FLAGS_PLAIN = 0x703, /* compressed, many tags, kind of compression: flags that change nothing here */
};

/* Header of an ordinary send. Fields are named by their letters on the wire. */
typedef struct {
    int code, encoding;
    int32_t opaque, flag;
    Text letter[14]; /* a to n; at is NULL if absent, as in the three of a signature */
    Text access_key, security_token, signature;
    Text topic, properties;
    int32_t queue_id, sys_flag, message_flag, reconsume_times;
    int64_t born_timestamp;
} Send;

/* Reads the header of an ordinary send; returns 0 for any other, including one with an unknown field.
 * Texts point into the header, or into scratch, which has the same length. */
int read_send(int encoding, const char *header, Py_ssize_t length, char *scratch, Send *send);

/* --- signatures ---------------------------------------------------------------------------------------- */

enum { SHA1_BLOCK = 64, SHA1_BYTES = 20, SIGNATURE_LENGTH = 28 };

/* State of the SHA-1 of a text that is added in pieces. */
typedef struct {
    uint32_t state[5];
    uint64_t length;
    unsigned char block[SHA1_BLOCK]; /* bytes of an incomplete block */
} Sha1;

/* Secret, prepared for signing. */
typedef struct {
    uint32_t inner[5], outer[5];
} HmacKey;

void choose_sha1(void); /* called once, at the start */
void sha1_add(Sha1 *sha, const char *from, Py_ssize_t length);
void hmac_prepare(HmacKey *key, const char *block); /* block of 64 bytes */
void hmac_start(const HmacKey *key, Sha1 *text);
void hmac_end(const HmacKey *key, Sha1 *text, char digest[SHA1_BYTES]);

/* Signed parts of a send: the values of its fields, concatenated, and its body. */
typedef struct {
    Text fields, body;
} SignedText;

/* Computes the HMACs of one or two texts; two take little more time than one. */
void hmac_texts(const HmacKey *key, const SignedText *texts, int count, char digests[][SHA1_BYTES]);

/* Access key and secret of a signer: Signer of protocol/signature.py. */
typedef struct {
    Text access_key;
    HmacKey key;
} Signer;

/* Points into the tuple, which must stay alive; returns 0 with an exception if it is not a signer. */
int read_signer(PyObject *signer, Signer *read);

/* Send whose access key and signature are to be checked. */
typedef struct {
    const Send *send;
    Text body;
    char *room; /* of the header's length */
    int is_signed; /* result */
} Claim;

/* Checks one or two claims. */
void check_claims(const Signer *signer, Claim *const *claims, int count);

/* --- records --------------------------------------------------------------------------------------------- */

/* Places of the parts of a record. */
typedef struct {
    const char *at, *born_host, *store_host, *rest, *body, *topic, *packed;
    int born_length, store_length;
    int32_t sys_flag, body_length;
    Py_ssize_t topic_length, packed_length;
} Record;

/* Reads the parts of a record; returns false unless a whole record with consistent lengths begins at this
 * place of the block. */
int read_parts(const char *block, Py_ssize_t length, int64_t place, Record *record);       /* records.c */

/* --- functions that Python calls, by their files ------------------------------------------------------ */

PyObject *split_frames(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);     /* frames.c */
PyObject *take_sends(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);       /* sends.c */
PyObject *signature_of(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);     /* signature.c */
PyObject *queue_runs(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);       /* entries.c */
PyObject *key_items(PyObject *module, PyObject *entries);
PyObject *index_entries(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);
PyObject *log_runs(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);         /* log_runs.c */
PyObject *index_block(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);
PyObject *read_records(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);     /* records.c */
PyObject *plain_records(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);
PyObject *record_starts(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);
PyObject *record_faults(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);
PyObject *property_values(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);
PyObject *record_columns(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);   /* columns.c */
PyObject *scan_properties(PyObject *module, PyObject *args);                                          /* reads.c */
PyObject *entry_run(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);
PyObject *read_now(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);
PyObject *read_messages(PyObject *module, PyObject *const *args, Py_ssize_t arg_count);

/* Returns the values of these properties of a record, each with its terminator, as a new reference; NULL
 * with or without an error. */
PyObject *values_of(const char *record, Py_ssize_t size, PyObject *names);                 /* records.c */

#endif
