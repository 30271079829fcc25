/* SHA-1 and the HMAC of it, by which access keys sign (protocol/signature.py). By the processor's own instructions
 * where it has them: a signed send costs a tenth more then, and not a third. Nothing else here uses SHA-1. */
#include "core.h"

#if defined(__GNUC__) && defined(__x86_64__)
#define MAY_HAVE_INSTRUCTIONS
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef void (*Blocks)(uint32_t state[5], const unsigned char *data, size_t count);

static uint32_t rotated(uint32_t value, int bits) { return value << bits | value >> (32 - bits); }

/* FIPS 180-4, 6.1.2. */
static void plain_blocks(uint32_t state[5], const unsigned char *data, size_t count) {
    for (; count--; data += SHA1_BLOCK) {
        uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        for (int i = 0; i < 16; i++) w[i] = get32((const char *)data + 4 * i);
        for (int i = 16; i < 80; i++) w[i] = rotated(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
#define ROUND(i, chosen, constant)                                      \
    do {                                                                \
        uint32_t next = rotated(a, 5) + (chosen) + e + (constant) + w[i]; \
        e = d, d = c, c = rotated(b, 30), b = a, a = next;              \
    } while (0)
        for (int i = 0; i < 20; i++) ROUND(i, d ^ (b & (c ^ d)), 0x5A827999u);
        for (int i = 20; i < 40; i++) ROUND(i, b ^ c ^ d, 0x6ED9EBA1u);
        for (int i = 40; i < 60; i++) ROUND(i, (b & c) | (d & (b | c)), 0x8F1BBCDCu);
        for (int i = 60; i < 80; i++) ROUND(i, b ^ c ^ d, 0xCA62C1D6u);
#undef ROUND
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
    }
}

static Blocks blocks = plain_blocks;

#ifdef MAY_HAVE_INSTRUCTIONS

__attribute__((target("sha,sse4.1"))) static void quick_blocks(uint32_t state[5], const unsigned char *data,
                                                                size_t count) {
    const __m128i backwards = _mm_set_epi64x(0x0001020304050607LL, 0x08090a0b0c0d0e0fLL);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1B);
    __m128i e = _mm_set_epi32((int)state[4], 0, 0, 0);
    for (; count--; data += SHA1_BLOCK) {
        __m128i w[4], before = abcd, e_before = e, last;
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), backwards);
        /* Four rounds at a time. The words of a group are made from those of the four groups before it. */
#define ROUNDS(kind, words)                            \
    do {                                               \
        last = abcd;                                   \
        abcd = _mm_sha1rnds4_epu32(abcd, words, kind); \
        e = last;                                      \
    } while (0)
#define WORDS(i)                                                                                                  \
    (w[(i) & 3] = _mm_sha1msg2_epu32(_mm_xor_si128(_mm_sha1msg1_epu32(w[(i) & 3], w[((i) + 1) & 3]), w[((i) + 2) & 3]), \
                                     w[((i) + 3) & 3]))
#define FIRST(i) ROUNDS(0, _mm_sha1nexte_epu32(e, w[i]))
#define NEXT(i) ROUNDS((i) / 5, _mm_sha1nexte_epu32(e, WORDS(i)))
        ROUNDS(0, _mm_add_epi32(e, w[0]));
        FIRST(1); FIRST(2); FIRST(3);
        NEXT(4); NEXT(5); NEXT(6); NEXT(7); NEXT(8); NEXT(9); NEXT(10); NEXT(11);
        NEXT(12); NEXT(13); NEXT(14); NEXT(15); NEXT(16); NEXT(17); NEXT(18); NEXT(19);
#undef NEXT
#undef FIRST
#undef WORDS
#undef ROUNDS
        e = _mm_sha1nexte_epu32(e, e_before);
        abcd = _mm_add_epi32(abcd, before);
    }
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1B));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}

static int has_instructions(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1) || !(c & bit_SSSE3)) return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 29;
}

#endif

static void start_state(uint32_t state[5]) {
    static const uint32_t start[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};
    memcpy(state, start, sizeof start);
}

void choose_sha1(void) {
#ifdef MAY_HAVE_INSTRUCTIONS
    if (!has_instructions()) return;
    /* Both must say the same: what is signed is decided by it. */
    unsigned char data[3 * SHA1_BLOCK];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * i * 31 + 7);
    uint32_t one[5], other[5];
    start_state(one);
    start_state(other);
    plain_blocks(one, data, 3);
    quick_blocks(other, data, 3);
    if (memcmp(one, other, sizeof one) == 0) blocks = quick_blocks;
#endif
}

/* --- a text in pieces ---------------------------------------------------------------------------------- */

void sha1_add(Sha1 *sha, const char *from, Py_ssize_t length) {
    const unsigned char *data = (const unsigned char *)from;
    size_t rest = (size_t)length, filled = sha->length % SHA1_BLOCK;
    if (!rest) return;
    sha->length += rest;
    if (filled) {
        size_t fits = SHA1_BLOCK - filled < rest ? SHA1_BLOCK - filled : rest;
        memcpy(sha->block + filled, data, fits);
        if (filled + fits < SHA1_BLOCK) return;
        blocks(sha->state, sha->block, 1);
        data += fits;
        rest -= fits;
    }
    if (rest >= SHA1_BLOCK) blocks(sha->state, data, rest / SHA1_BLOCK);
    memcpy(sha->block, data + (rest - rest % SHA1_BLOCK), rest % SHA1_BLOCK);
}

static void sha1_end(Sha1 *sha, char digest[SHA1_BYTES]) {
    size_t filled = sha->length % SHA1_BLOCK;
    sha->block[filled++] = 0x80;
    if (filled > SHA1_BLOCK - 8) {
        memset(sha->block + filled, 0, SHA1_BLOCK - filled);
        blocks(sha->state, sha->block, 1);
        filled = 0;
    }
    memset(sha->block + filled, 0, SHA1_BLOCK - 8 - filled);
    put64((char *)sha->block + SHA1_BLOCK - 8, sha->length * 8);
    blocks(sha->state, sha->block, 1);
    for (int i = 0; i < 5; i++) digest = put32(digest, sha->state[i]);
}

/* --- HMAC (RFC 2104) ----------------------------------------------------------------------------------- */

/* The state behind the first block, which is the key's. */
static void pad_state(uint32_t state[5], const char *block, unsigned char pad) {
    unsigned char padded[SHA1_BLOCK];
    for (int i = 0; i < SHA1_BLOCK; i++) padded[i] = (unsigned char)block[i] ^ pad;
    start_state(state);
    blocks(state, padded, 1);
}

void hmac_prepare(HmacKey *key, const char *block) {
    pad_state(key->inner, block, 0x36);
    pad_state(key->outer, block, 0x5C);
}

static void start_behind(Sha1 *sha, const uint32_t state[5]) {
    memcpy(sha->state, state, sizeof sha->state);
    sha->length = SHA1_BLOCK;
}

void hmac_start(const HmacKey *key, Sha1 *text) { start_behind(text, key->inner); }

void hmac_end(const HmacKey *key, Sha1 *text, char digest[SHA1_BYTES]) {
    char inner[SHA1_BYTES];
    Sha1 outer;
    sha1_end(text, inner);
    start_behind(&outer, key->outer);
    sha1_add(&outer, inner, SHA1_BYTES);
    sha1_end(&outer, digest);
}
