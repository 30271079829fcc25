/* SHA-1 and its HMAC, which sign requests with access keys (protocol/signature.py). With the processor's
 * SHA instructions, if it has them: a signed send then costs a tenth more, and not a third. No other code
 * here uses SHA-1. */
#include "core.h"

#if defined(__GNUC__) && defined(__x86_64__)
#define MAY_HAVE_INSTRUCTIONS
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef void (*Blocks)(uint32_t state[5], const unsigned char *data, size_t count);
/* Processes blocks of two texts at once, which is faster than one after the other where the processor
 * waits for its own results. */
typedef void (*PairedBlocks)(uint32_t one[5], const unsigned char *data, uint32_t other[5],
                             const unsigned char *other_data, size_t count);

static inline uint32_t rotated(uint32_t value, int bits) { return value << bits | value >> (32 - bits); }

/* FIPS 180-4, 6.1.2. */
static void plain_blocks(uint32_t state[5], const unsigned char *data, size_t count) {
    for (; count--; data += SHA1_BLOCK) {
        uint32_t w[16], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        for (int i = 0; i < 16; i++) w[i] = get32((const char *)data + 4 * i);
        /* Five rounds at a time: then each of the five variables is in its old place, and none is moved. */
#define WORD(i) \
    ((i) < 16 ? w[(i) & 15] : (w[(i) & 15] = rotated(w[((i) + 13) & 15] ^ w[((i) + 8) & 15] ^ w[((i) + 2) & 15] ^ w[(i) & 15], 1)))
#define ROUND(a, b, c, d, e, i, chosen, constant) \
    e = e + constant + WORD(i) + chosen(b, c, d) + rotated(a, 5), b = rotated(b, 30)
#define CHOICE(b, c, d) (d ^ (b & (c ^ d)))
#define PARITY(b, c, d) (b ^ c ^ d)
#define MAJORITY(b, c, d) ((b & c) | (d & (b | c)))
#define FIVE(i, chosen, constant)                  \
    ROUND(a, b, c, d, e, i, chosen, constant);     \
    ROUND(e, a, b, c, d, i + 1, chosen, constant); \
    ROUND(d, e, a, b, c, i + 2, chosen, constant); \
    ROUND(c, d, e, a, b, i + 3, chosen, constant); \
    ROUND(b, c, d, e, a, i + 4, chosen, constant)
#define TWENTY(i, chosen, constant)                                       \
    FIVE(i, chosen, constant); FIVE(i + 5, chosen, constant);             \
    FIVE(i + 10, chosen, constant); FIVE(i + 15, chosen, constant)
        TWENTY(0, CHOICE, 0x5A827999u);
        TWENTY(20, PARITY, 0x6ED9EBA1u);
        TWENTY(40, MAJORITY, 0x8F1BBCDCu);
        TWENTY(60, PARITY, 0xCA62C1D6u);
#undef TWENTY
#undef FIVE
#undef MAJORITY
#undef PARITY
#undef CHOICE
#undef ROUND
#undef WORD
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
    }
}

static void plain_pairs(uint32_t one[5], const unsigned char *data, uint32_t other[5], const unsigned char *other_data,
                        size_t count) {
    plain_blocks(one, data, count);
    plain_blocks(other, other_data, count);
}

static Blocks blocks = plain_blocks;
static PairedBlocks pairs = plain_pairs;

#ifdef MAY_HAVE_INSTRUCTIONS

/* Text that is processed block by block. */
typedef struct {
    __m128i abcd, e, w[4], abcd_before, e_before, last;
} Lane;

/* Four rounds at a time, for each lane that FOR_EACH names. The words of a group are computed from those
 * of the four groups before it. */
#define ROUNDS(lane, kind, words)                                    \
    do {                                                             \
        (lane).last = (lane).abcd;                                   \
        (lane).abcd = _mm_sha1rnds4_epu32((lane).abcd, words, kind); \
        (lane).e = (lane).last;                                      \
    } while (0)
#define WORDS(v, i)                                                                                                   \
    (v[(i) & 3] = _mm_sha1msg2_epu32(                                                                                 \
         _mm_xor_si128(_mm_sha1msg1_epu32(v[(i) & 3], v[((i) + 1) & 3]), v[((i) + 2) & 3]), v[((i) + 3) & 3]))
#define LOAD(lane, data)                                                                                          \
    do {                                                                                                          \
        for (int i = 0; i < 4; i++)                                                                               \
            (lane).w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)((data) + 16 * i)), backwards);       \
        (lane).abcd_before = (lane).abcd;                                                                         \
        (lane).e_before = (lane).e;                                                                               \
    } while (0)
#define BEGIN(lane) ROUNDS(lane, 0, _mm_add_epi32((lane).e, (lane).w[0]))
#define FIRST(lane, i) ROUNDS(lane, 0, _mm_sha1nexte_epu32((lane).e, (lane).w[i]))
#define NEXT(lane, i) ROUNDS(lane, (i) / 5, _mm_sha1nexte_epu32((lane).e, WORDS((lane).w, i)))
#define END(lane)                                                       \
    do {                                                                \
        (lane).e = _mm_sha1nexte_epu32((lane).e, (lane).e_before);      \
        (lane).abcd = _mm_add_epi32((lane).abcd, (lane).abcd_before);   \
    } while (0)
#define BACKWARDS _mm_set_epi64x(0x0001020304050607LL, 0x08090a0b0c0d0e0fLL)
#define QUICK __attribute__((target("sha,sse4.1")))

QUICK static inline void enter(Lane *lane, const uint32_t state[5]) {
    lane->abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1B);
    lane->e = _mm_set_epi32((int)state[4], 0, 0, 0);
}

QUICK static inline void leave(const Lane *lane, uint32_t state[5]) {
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(lane->abcd, 0x1B));
    state[4] = (uint32_t)_mm_extract_epi32(lane->e, 3);
}

QUICK static void quick_blocks(uint32_t state[5], const unsigned char *data, size_t count) {
    const __m128i backwards = BACKWARDS;
    Lane a;
    enter(&a, state);
    for (; count--; data += SHA1_BLOCK) {
        LOAD(a, data);
        BEGIN(a);
        FIRST(a, 1); FIRST(a, 2); FIRST(a, 3);
        NEXT(a, 4); NEXT(a, 5); NEXT(a, 6); NEXT(a, 7); NEXT(a, 8); NEXT(a, 9); NEXT(a, 10); NEXT(a, 11);
        NEXT(a, 12); NEXT(a, 13); NEXT(a, 14); NEXT(a, 15); NEXT(a, 16); NEXT(a, 17); NEXT(a, 18); NEXT(a, 19);
        END(a);
    }
    leave(&a, state);
}

QUICK static void quick_pairs(uint32_t one[5], const unsigned char *data, uint32_t other[5],
                              const unsigned char *other_data, size_t count) {
    const __m128i backwards = BACKWARDS;
    Lane a, b;
    enter(&a, one);
    enter(&b, other);
    for (; count--; data += SHA1_BLOCK, other_data += SHA1_BLOCK) {
        LOAD(a, data);
        LOAD(b, other_data);
        BEGIN(a);
        BEGIN(b);
#define BOTH(step, i) step(a, i); step(b, i)
        BOTH(FIRST, 1); BOTH(FIRST, 2); BOTH(FIRST, 3);
        BOTH(NEXT, 4); BOTH(NEXT, 5); BOTH(NEXT, 6); BOTH(NEXT, 7); BOTH(NEXT, 8); BOTH(NEXT, 9);
        BOTH(NEXT, 10); BOTH(NEXT, 11); BOTH(NEXT, 12); BOTH(NEXT, 13); BOTH(NEXT, 14); BOTH(NEXT, 15);
        BOTH(NEXT, 16); BOTH(NEXT, 17); BOTH(NEXT, 18); BOTH(NEXT, 19);
#undef BOTH
        END(a);
        END(b);
    }
    leave(&a, one);
    leave(&b, other);
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
    /* All implementations must agree, because signatures depend on them. */
    unsigned char data[4 * SHA1_BLOCK];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * i * 31 + 7);
    uint32_t found[5][5];
    for (int i = 0; i < 5; i++) start_state(found[i]);
    plain_pairs(found[0], data, found[1], data + SHA1_BLOCK, 3);
    quick_blocks(found[2], data, 3);
    quick_pairs(found[3], data, found[4], data + SHA1_BLOCK, 3);
    const size_t size = sizeof found[0];
    if (memcmp(found[0], found[2], size) || memcmp(found[0], found[3], size) || memcmp(found[1], found[4], size)) return;
    blocks = quick_blocks;
    pairs = quick_pairs;
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

/* State after the first block, which is the key's. */
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

/* --- HMAC of whole texts, two at once ------------------------------------------------------------------ */

/* Blocks of a text, in place: those of the fields; the one in which the fields end and the body begins;
 * those of the body; the last one or two, with the padding. */
typedef struct {
    const unsigned char *at[4];
    size_t count[4];
    int part;
    uint32_t state[5];
    unsigned char between[SHA1_BLOCK], end[2 * SHA1_BLOCK];
} Way;

static void lay_out(Way *way, const SignedText *text) {
    const unsigned char *fields = (const unsigned char *)text->fields.at, *body = (const unsigned char *)text->body.at;
    size_t fields_length = (size_t)text->fields.length, rest = (size_t)text->body.length;
    size_t over = fields_length % SHA1_BLOCK, filled;
    way->part = 0;
    way->at[0] = fields;
    way->count[0] = fields_length / SHA1_BLOCK;
    way->at[1] = way->between;
    way->count[1] = over && rest >= SHA1_BLOCK - over;
    unsigned char *partly = way->count[1] ? way->between : way->end;
    if (over) memcpy(partly, fields + (fields_length - over), over);
    if (way->count[1]) {
        memcpy(way->between + over, body, SHA1_BLOCK - over);
        body += SHA1_BLOCK - over;
        rest -= SHA1_BLOCK - over;
        over = 0;
    }
    way->at[2] = body;
    way->count[2] = over ? 0 : rest / SHA1_BLOCK;
    body += way->count[2] * SHA1_BLOCK;
    rest -= way->count[2] * SHA1_BLOCK;
    if (rest) memcpy(way->end + over, body, rest);
    filled = over + rest;
    way->at[3] = way->end;
    way->count[3] = filled + 9 <= SHA1_BLOCK ? 1 : 2;
    way->end[filled++] = 0x80;
    memset(way->end + filled, 0, way->count[3] * SHA1_BLOCK - filled);
    uint64_t bits = (SHA1_BLOCK + (uint64_t)text->fields.length + (uint64_t)text->body.length) * 8;
    put64((char *)way->end + way->count[3] * SHA1_BLOCK - 8, bits);
}

/* Skips finished parts; returns 0 if all are finished. */
static int goes_further(Way *way) {
    while (way->part < 4 && !way->count[way->part]) way->part++;
    return way->part < 4;
}

static const unsigned char *step(Way *way, size_t count) {
    const unsigned char *from = way->at[way->part];
    way->at[way->part] += count * SHA1_BLOCK;
    way->count[way->part] -= count;
    return from;
}

static void go_alone(Way *way) {
    while (goes_further(way)) {
        size_t count = way->count[way->part];
        blocks(way->state, step(way, count), count);
    }
}

static void start_outer(const HmacKey *key, Way *way) {
    unsigned char *block = way->end;
    memset(block, 0, SHA1_BLOCK);
    char *to = (char *)block;
    for (int i = 0; i < 5; i++) to = put32(to, way->state[i]);
    block[SHA1_BYTES] = 0x80;
    put64((char *)block + SHA1_BLOCK - 8, (SHA1_BLOCK + SHA1_BYTES) * 8);
    memcpy(way->state, key->outer, sizeof way->state);
}

void hmac_texts(const HmacKey *key, const SignedText *texts, int count, char digests[][SHA1_BYTES]) {
    Way ways[2];
    int laid = 0;
    do {
        lay_out(&ways[laid], &texts[laid]);
        memcpy(ways[laid].state, key->inner, sizeof ways[laid].state);
    } while (++laid < count);
    while (count == 2 && goes_further(&ways[0]) && goes_further(&ways[1])) {
        size_t one = ways[0].count[ways[0].part], other = ways[1].count[ways[1].part];
        size_t both = one < other ? one : other;
        const unsigned char *data = step(&ways[0], both), *other_data = step(&ways[1], both);
        pairs(ways[0].state, data, ways[1].state, other_data, both);
    }
    for (int i = 0; i < count; i++) {
        go_alone(&ways[i]);
        start_outer(key, &ways[i]);
    }
    if (count == 2) pairs(ways[0].state, ways[0].end, ways[1].state, ways[1].end, 1);
    else blocks(ways[0].state, ways[0].end, 1);
    for (int i = 0; i < count; i++) {
        char *to = digests[i];
        for (int word = 0; word < 5; word++) to = put32(to, ways[i].state[word]);
    }
}
