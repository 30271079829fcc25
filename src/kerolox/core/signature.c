/* Signatures of access keys: protocol/signature.py. */
#include "core.h"

/* Base64 of a digest: 28 characters, the last of them the one that fills up. */
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

/* In a time that says nothing about where they differ. */
static int same_signature(Text given, const char right[SIGNATURE_LENGTH]) {
    if (given.length != SIGNATURE_LENGTH) return 0;
    unsigned char differ = 0;
    for (int i = 0; i < SIGNATURE_LENGTH; i++) differ |= (unsigned char)(given.at[i] ^ right[i]);
    return !differ;
}

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

int is_signed(const Signer *signer, const Send *send, Text body) {
    Text name = send->access_key, token = send->security_token;
    if (!name.at || !same_text(name, signer->access_key.at, signer->access_key.length) || !send->signature.at) return 0;
    /* The values in the order of the names, all but the signature; then the body. */
    Sha1 text;
    hmac_start(&signer->key, &text);
    sha1_add(&text, name.at, name.length);
    sha1_add(&text, token.at, token.length);
    const int letters = (int)(sizeof send->letter / sizeof *send->letter);
    for (int i = 0; i < letters; i++) sha1_add(&text, send->letter[i].at, send->letter[i].length);
    sha1_add(&text, body.at, body.length);
    char digest[SHA1_BYTES], right[SIGNATURE_LENGTH];
    hmac_end(&signer->key, &text, digest);
    put_signature(right, digest);
    return same_signature(send->signature, right);
}
