/* Growing buffers, CRC-32, and text from the wire. See core.h. */
#include "core.h"

char *reserve(Buffer *buffer, Py_ssize_t more) {
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

/* --- CRC-32, eight bytes at a time --- */

/* Filled once, when the module is loaded. */
static uint32_t crc_table[8][256];

void fill_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
}

uint32_t crc32_of(const char *data, Py_ssize_t length) {
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

/* --- text --- */

int is_ascii(const char *at, Py_ssize_t length) {
    uint64_t all = 0, eight;
    for (; length >= 8; length -= 8, at += 8) {
        memcpy(&eight, at, 8);
        all |= eight;
    }
    while (length-- > 0) all |= (unsigned char)*at++;
    return !(all & 0x8080808080808080u);
}

int is_utf8(const char *at, Py_ssize_t length) {
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

int read_number(Text text, int64_t low, int64_t high, int64_t *value) {
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

int java_hash_of(const char *at, Py_ssize_t length, uint32_t *hash) {
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

void read_properties(const char *at, Py_ssize_t length, Properties *found) {
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

int are_words(PyObject *words, const char *who) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(words); i++) {
        PyObject *word = PyTuple_GET_ITEM(words, i);
        if (PyBytes_Check(word) && PyBytes_GET_SIZE(word)) continue;
        PyErr_Format(PyExc_TypeError, "%s: the words to look for are bytes", who);
        return 0;
    }
    return 1;
}

int has_any(const char *at, Py_ssize_t length, PyObject *words) {
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
