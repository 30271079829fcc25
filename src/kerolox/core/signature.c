/* Signatures of access keys: protocol/signature.py. */
#include "core.h"

/* Base64 of a digest: 28 characters, the last of them the padding. */
static void put_signature(char to[SIGNATURE_LENGTH], const char digest[SHA1_BYTES]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char padded[SHA1_BYTES + 1] = {0};
    memcpy(padded, digest, SHA1_BYTES);
    for (int i = 0; i < SHA1_BYTES + 1; i += 3) {
        uint32_t bits = (uint32_t)padded[i] << 16 | (uint32_t)padded[i + 1] << 8 | padded[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6) *to++ = digits[bits >> shift & 63];
    }
    to[-1] = '=';
}

/* Compares in a time that does not depend on where they differ. */
static int same_signature(Text given, const char right[SIGNATURE_LENGTH]) {
    if (given.length != SIGNATURE_LENGTH) return 0;
    unsigned char differ = 0;
    for (int i = 0; i < SIGNATURE_LENGTH; i++) differ |= (unsigned char)(given.at[i] ^ right[i]);
    return !differ;
}

/* --- a request's fields --------------------------------------------------------------------------------- */

enum { FIELDS_MAX = 64 }; /* more are left to the Python twin; requests have less than half as many */

typedef struct {
    Text name, value;
} Field;

/* Inserts a field into the sorted ones; returns 0 if Python must sort, because Java sorts by UTF-16 units. */
static int put_sorted(Field *fields, int count, Field field) {
    if (!is_ascii(field.name.at, field.name.length)) return 0;
    for (; count; count--) {
        Text before = fields[count - 1].name;
        size_t common = (size_t)(before.length < field.name.length ? before.length : field.name.length);
        int order = memcmp(before.at, field.name.at, common);
        if (order < 0 || (!order && before.length <= field.name.length)) break;
        fields[count] = fields[count - 1];
    }
    fields[count] = field;
    return 1;
}

/* Reads the UTF-8 of a text; returns 0 if it has none, or is no text, with or without an error. */
static int read_text(PyObject *text, Text *read) {
    if (!PyUnicode_Check(text)) {
        PyErr_SetString(PyExc_TypeError, "signature_of: fields are text");
        return 0;
    }
    read->at = PyUnicode_AsUTF8AndSize(text, &read->length);
    if (!read->at && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) PyErr_Clear();
    return read->at != NULL;
}

PyObject *signature_of(PyObject *module, PyObject *const *args, Py_ssize_t arg_count) {
    if (arg_count != 4) return PyErr_Format(PyExc_TypeError, "signature_of takes 4 arguments, got %zd", arg_count);
    PyObject *given = args[0], *body = args[1], *block = args[2], *left_out = args[3];
    if (!PyDict_Check(given) || !PyBytes_Check(body) || !PyBytes_Check(block) || !PyAnySet_Check(left_out)) {
        PyErr_SetString(PyExc_TypeError, "signature_of: dict, bytes, bytes and set expected");
        return NULL;
    }
    if (PyBytes_GET_SIZE(block) != SHA1_BLOCK)
        return PyErr_Format(PyExc_ValueError, "a key has %d bytes, not %zd", SHA1_BLOCK, PyBytes_GET_SIZE(block));
    Field fields[FIELDS_MAX];
    int count = 0;
    Py_ssize_t at = 0;
    PyObject *name, *value;
    while (PyDict_Next(given, &at, &name, &value)) {
        Field field;
        if (!read_text(name, &field.name)) goto not_here;
        if (IS_LITERAL(field.name, "Signature")) continue;
        int without = PySet_GET_SIZE(left_out) ? PySet_Contains(left_out, name) : 0;
        if (without < 0) return NULL;
        if (without) continue;
        if (!read_text(value, &field.value) || count == FIELDS_MAX || !put_sorted(fields, count, field)) goto not_here;
        count++;
    }
    HmacKey key;
    Sha1 text;
    hmac_prepare(&key, PyBytes_AS_STRING(block));
    hmac_start(&key, &text);
    for (int i = 0; i < count; i++) sha1_add(&text, fields[i].value.at, fields[i].value.length);
    sha1_add(&text, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body));
    char digest[SHA1_BYTES], right[SIGNATURE_LENGTH];
    hmac_end(&key, &text, digest);
    put_signature(right, digest);
    return PyUnicode_DecodeASCII(right, SIGNATURE_LENGTH, NULL);
not_here:
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* --- a run's signer ------------------------------------------------------------------------------------- */

int read_signer(PyObject *signer, Signer *read) {
    const char *block;
    Py_ssize_t length;
    if (!PyTuple_Check(signer)) {
        PyErr_SetString(PyExc_TypeError, "a signer is a tuple");
        return 0;
    }
    if (!PyArg_ParseTuple(signer, "y#y#", &read->access_key.at, &read->access_key.length, &block, &length)) return 0;
    if (length != SHA1_BLOCK) {
        PyErr_Format(PyExc_ValueError, "the key of a signer has %d bytes, not %zd", SHA1_BLOCK, length);
        return 0;
    }
    hmac_prepare(&read->key, block);
    return 1;
}

/* Writes the values in the order of the names, all but the signature. */
static Text put_values(const Send *send, char *room) {
    Text name = send->access_key, token = send->security_token;
    char *to = put_bytes(room, name.at, name.length);
    if (token.length) to = put_bytes(to, token.at, token.length);
    const int letters = (int)(sizeof send->letter / sizeof *send->letter);
    for (int i = 0; i < letters; i++)
        if (send->letter[i].length) to = put_bytes(to, send->letter[i].at, send->letter[i].length);
    return (Text){room, to - room};
}

void check_claims(const Signer *signer, Claim *const *claims, int count) {
    Claim *checked[2];
    SignedText texts[2];
    char digests[2][SHA1_BYTES], right[SIGNATURE_LENGTH];
    int found = 0;
    for (int i = 0; i < count; i++) {
        const Send *send = claims[i]->send;
        claims[i]->is_signed = 0;
        if (!send->access_key.length || !send->signature.length ||
            !same_text(send->access_key, signer->access_key.at, signer->access_key.length))
            continue;
        checked[found] = claims[i];
        texts[found++] = (SignedText){put_values(send, claims[i]->room), claims[i]->body};
    }
    if (!found) return;
    hmac_texts(&signer->key, texts, found, digests);
    for (int i = 0; i < found; i++) {
        put_signature(right, digests[i]);
        checked[i]->is_signed = same_signature(checked[i]->send->signature, right);
    }
}
