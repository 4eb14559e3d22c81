/* Products of queries with a block of keys, and of weights with a block of values. */

/* Attention over caches, block by block of RANKS slots: for each block the keys and values are read once for all rows of
   a tile, which are the query heads of a key head for each of some tokens. The slots that a row sees count by their rank,
   from 0 on, and blocks are of ranks, so that the sums of a row depend neither on the slots between them nor on other rows:
   a path of a tree is summed as a chain is. Within a block keys lie transposed, a slot a lane, and a score is summed
   channel by channel; values are summed slot by slot, pairs of bf16 two at a time. The blocks' results are added up in order,
   whichever thread has read them. */
enum { RANKS = 128, MOST_TILED_ROWS = 96, VALUES_AT_ONCE = 64, KEYS_AT_ONCE = 4 * LANES };
#ifdef BF16_PAIRS
enum { IN_PAIRS = 1 }; /* bf16 is multiplied as it is, two numbers of a row at once */
#else
enum { IN_PAIRS = 0 };
#endif
#if defined(__AVX512F__) || defined(__aarch64__) /* 32 registers */
enum { MOST_DOTTED = 8, FEW_DOTTED = 4 };
#else
enum { MOST_DOTTED = 4, FEW_DOTTED = 2 };
#endif
enum { MOST_MIXED = 4 };

/* Up to LANES words of a row from word `from` on: two bf16 numbers each, or one of fp32. */
static inline vec some_words(const void *row, int64_t from, int64_t d, const int is_short) {
    if (!(is_short && IN_PAIRS)) return some_numbers(row, from, d - from < LANES ? d - from : LANES, is_short);
    int64_t left = (d - 2 * from) * sizeof(uint16_t);
    const char *at = (const char *)row + from * sizeof(float);
    if (left >= BYTES) return *(const vec *)at;
    vec some = {0};
    memcpy(&some, at, left);
    return some;
}

static inline int64_t words_of(int64_t d, const int is_short) { return is_short && IN_PAIRS ? (d + 1) / 2 : d; }
static inline int64_t filled_channels(int64_t d) { return (d + LANES - 1) / LANES * LANES; }

/* Where slots lie whose numbers are `seen`: with `is_row` they follow each other, and only the first number is read. */
static inline const char *slot_at(const void *rows, int64_t bytes, const int32_t *seen, int64_t i, const int is_row) {
    return (const char *)rows + (is_row ? seen[0] + i : seen[i]) * bytes;
}

/* Fetch what slots `from` to `end` of the next block hold, of which `bytes` each are read: to the second cache, which has room
   for keys and values of a block, and takes more requests at once than the first. */
static inline void fetch_ahead(const void *rows, int64_t bytes, const int32_t *seen, int64_t from, int64_t end, const int is_row) {
    if (is_row) fetch_lines(slot_at(rows, bytes, seen, from + RANKS, 1), (end - from) * bytes);
    else for (int64_t i = from; i < end; i++) fetch_lines(slot_at(rows, bytes, seen, i, 0) + RANKS * bytes, bytes);
}

/* LANES vectors as the rows of a matrix, turned into its columns. */
INLINED turn(vec a[LANES]) {
    vec b[LANES] __attribute__((aligned(BYTES)));
#ifdef __AVX512F__
    __m512d *pairs = (__m512d *)b;
    UNROLLED for (int i = 0; i < LANES; i += 2) {
        __m512 even = (__m512)a[i], odd = (__m512)a[i + 1];
        b[i] = (vec)_mm512_unpacklo_ps(even, odd), b[i + 1] = (vec)_mm512_unpackhi_ps(even, odd);
    }
    UNROLLED for (int i = 0; i < LANES; i += 4) /* column i + j of each quarter of a vector, of four rows, in a[i + j] */
        UNROLLED for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = (vec)_mm512_unpacklo_pd(pairs[i + j], pairs[i + j + 2]);
            a[i + 2 * j + 1] = (vec)_mm512_unpackhi_pd(pairs[i + j], pairs[i + j + 2]);
        }
    UNROLLED for (int j = 0; j < 4; j++)
        UNROLLED for (int half = 0; half < 2; half++) {
            __m512 first = (__m512)a[8 * half + j], second = (__m512)a[8 * half + 4 + j];
            b[8 * half + j] = (vec)_mm512_shuffle_f32x4(first, second, 0x88);
            b[8 * half + 4 + j] = (vec)_mm512_shuffle_f32x4(first, second, 0xdd);
        }
    UNROLLED for (int j = 0; j < 8; j++) {
        int column = j % 4 + j / 4 * 4;
        a[column] = (vec)_mm512_shuffle_f32x4((__m512)b[j], (__m512)b[j + 8], 0x88);
        a[column + 8] = (vec)_mm512_shuffle_f32x4((__m512)b[j], (__m512)b[j + 8], 0xdd);
    }
#else
    UNROLLED for (int turn = 1; turn < LANES; turn *= 2) {
        UNROLLED for (int i = 0; i < LANES / 2; i++) {
            Neighbours of = zipped(a[i], a[i + LANES / 2]);
            b[2 * i] = of.first, b[2 * i + 1] = of.second;
        }
        UNROLLED for (int i = 0; i < LANES; i++) a[i] = b[i];
    }
#endif
}

/* The part of `transpose` at the end of slots or words: `n` slots of which `left` words are there. */
static __attribute__((noinline)) void transpose_last(const void *keys, int64_t bytes, const int32_t *seen, int64_t n, int64_t w, int64_t d,
                                                     int64_t left, float *out, int is_short, int is_row) {
    vec a[LANES];
    for (int i = 0; i < LANES; i++) {
        const char *key = slot_at(keys, bytes, seen, i < n ? i : n - 1, is_row);
        a[i] = is_short ? some_words(key, w, d, 1) : some_words(key, w, d, 0);
    }
    turn(a);
    memcpy(out, a, left * sizeof(vec));
}

/* The keys in slots `from` to `end` of `seen`, LANES of them at a time, word by word. Those of the next block are fetched
   meanwhile. */
INLINED transpose(const void *keys, const int32_t *seen, int64_t from, int64_t end, int64_t d, float *out,
                  const int is_short, const int is_row) {
    const int64_t words = words_of(d, is_short), bytes = d * (is_short ? 2 : 4), whole = d / (is_short && IN_PAIRS ? 2 : 1);
    for (int64_t k = from; k < end; k += LANES, out += words * LANES) {
        int64_t n = end - k < LANES ? end - k : LANES;
        fetch_ahead(keys, bytes, seen, k, k + n, is_row);
        for (int64_t w = 0; w < words; w += LANES) {
            if (n < LANES || w + LANES > whole) {
                const void *first = is_row ? slot_at(keys, bytes, seen, k, 1) - seen[0] * bytes : keys;
                int64_t left = words - w < LANES ? words - w : LANES;
                transpose_last(first, bytes, is_row ? seen : seen + k, n, w, d, left, out + w * LANES, is_short, is_row);
                continue;
            }
            vec a[LANES];
            const char *key = slot_at(keys, bytes, seen, k, is_row);
            UNROLLED for (int i = 0; i < LANES; i++) {
                if (!is_row) key = slot_at(keys, bytes, seen, k + i, 0);
                __asm__("" : "+r"(key)); /* else the compiler holds LANES addresses, for which there are no registers */
                a[i] = is_short && IN_PAIRS ? *(const vec *)(key + w * 4) : some_numbers(key, w, LANES, is_short);
                if (is_row) key += bytes;
            }
            turn(a);
            UNROLLED for (int i = 0; i < LANES; i++) *(vec *)(out + (w + i) * LANES) = a[i];
        }
    }
}

static inline vec add_words(vec sum, vec many, float one, const int is_short) {
#ifdef BF16_PAIRS
    if (is_short) return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)many, (__m512bh)_mm512_set1_ps(one));
#endif
    return add_product(sum, many, one);
}

/* The products of `rows` queries with `groups` times LANES transposed keys, to rows of RANKS scores. */
INLINED dots(const int rows, const int groups, const float *query, int64_t words, const float *keys, float *out, const int is_short) {
    vec sum[MOST_DOTTED * 2];
    UNROLLED for (int i = 0; i < rows * groups; i++) sum[i] = (vec){0};
    for (int64_t w = 0; w < words; w++)
        UNROLLED for (int g = 0; g < groups; g++) {
            vec key = *(const vec *)(keys + (g * words + w) * LANES);
            UNROLLED for (int r = 0; r < rows; r++)
                sum[r * groups + g] = add_words(sum[r * groups + g], key, query[r * words + w], is_short);
        }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int g = 0; g < groups; g++) *(vec *)(out + r * RANKS + g * LANES) = sum[r * groups + g];
}

/* To `out` of `rows` rows from channel c on: `n` values by their weights; `n` counts pairs if two are added at once. */
INLINED mix_block(const int rows, const int parts, const float *weights, const float *values, int64_t width, int64_t n,
                  float *out, const int is_short) {
    vec sum[MOST_MIXED * 4];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int j = 0; j < parts; j++) sum[r * parts + j] = *(const vec *)(out + r * width + j * LANES);
    for (int64_t k = 0; k < n; k++)
        UNROLLED for (int j = 0; j < parts; j++) {
            vec read = *(const vec *)(values + k * width + j * LANES);
            UNROLLED for (int r = 0; r < rows; r++)
                sum[r * parts + j] = add_words(sum[r * parts + j], read, weights[r * RANKS + k], is_short);
        }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int j = 0; j < parts; j++) *(vec *)(out + r * width + j * LANES) = sum[r * parts + j];
}

#define DOTTED(ROWS, SHORT)                                                                                            \
    case ROWS:                                                                                                         \
        for (int64_t g = 0; g < groups; g += ROWS <= FEW_DOTTED ? 4 : 2)                                               \
            dots(ROWS, ROWS <= FEW_DOTTED ? 4 : 2, query, words, keys + g * words * LANES, out + g * LANES, SHORT);    \
        break;
#define MIXED(ROWS, SHORT)                                                                                             \
    case ROWS:                                                                                                         \
        for (; c + 4 * LANES <= width; c += 4 * LANES) mix_block(ROWS, 4, weights, values + c, width, n, out + c, SHORT); \
        for (; c + 2 * LANES <= width; c += 2 * LANES) mix_block(ROWS, 2, weights, values + c, width, n, out + c, SHORT); \
        for (; c < width; c += LANES) mix_block(ROWS, 1, weights, values + c, width, n, out + c, SHORT);               \
        break;
#define KERNELS_OF(name, SHORT)                                                                                        \
    static void dots_##name(int64_t rows, int64_t groups, const float *query, int64_t words, const float *keys, float *out) { \
        switch (rows) { DOTTED(1, SHORT) DOTTED(2, SHORT) DOTTED(3, SHORT) DOTTED(4, SHORT) MORE_DOTTED(SHORT) }       \
    }                                                                                                                  \
    static void mix_##name(int64_t rows, const float *weights, const float *values, int64_t width, int64_t n, float *out) { \
        int64_t c = 0;                                                                                                 \
        switch (rows) { MIXED(1, SHORT) MIXED(2, SHORT) MIXED(3, SHORT) MIXED(4, SHORT) }                              \
    }
#if defined(__AVX512F__) || defined(__aarch64__)
#define MORE_DOTTED(SHORT) DOTTED(5, SHORT) DOTTED(6, SHORT) DOTTED(7, SHORT) DOTTED(8, SHORT)
#else
#define MORE_DOTTED(SHORT)
#endif
KERNELS_OF(wide, 0)
#ifdef BF16_PAIRS
KERNELS_OF(pairs, 1)
#else
#define dots_pairs dots_wide
#define mix_pairs mix_wide
#endif

/* Two values [D] of bf16, channel by channel, to `out`; b is null if there is only one value. */
static inline void lay_pair(const uint16_t *a, const uint16_t *b, int64_t d, float *out) {
    int64_t c = 0;
#ifdef BF16_PAIRS
    static const uint16_t mixed[2][2 * LANES] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    const __m512i lower = _mm512_loadu_si512(mixed[0]), upper = _mm512_loadu_si512(mixed[1]);
    for (; c + 2 * LANES <= d; c += 2 * LANES) {
        __m512i first = _mm512_loadu_si512(a + c), second = b ? _mm512_loadu_si512(b + c) : _mm512_setzero_si512();
        _mm512_storeu_si512(out + c, _mm512_permutex2var_epi16(first, lower, second));
        _mm512_storeu_si512(out + c + LANES, _mm512_permutex2var_epi16(first, upper, second));
    }
#endif
    for (; c < d; c += LANES) {
        int64_t left = d - c < LANES ? d - c : LANES;
        bits first = (bits)some_numbers(a, c, left, 1), second = b ? (bits)some_numbers(b, c, left, 1) : (bits){0};
        *(bits *)(out + c) = first >> 16 | second;
    }
}

/* The values in slots `from` to `end` of `seen` as they are mixed: of each two slots, channel by channel, or each for itself.
   Returns how many there are. Those of the next block are fetched meanwhile. */
static inline __attribute__((always_inline)) int64_t lay_values(const void *values, const int32_t *seen, int64_t from,
                                                                int64_t end, int64_t d, float *out, const int is_short, const int is_row) {
    const int64_t width = filled_channels(d), bytes = d * (is_short ? 2 : 4);
    for (int64_t first = from, last; first < end; first = last) {
        last = end - first < LANES ? end : first + LANES;
        fetch_ahead(values, bytes, seen, first, last, is_row);
        for (int64_t k = first; !(is_short && IN_PAIRS) && k < last; k++, out += width)
            for (int64_t c = 0; c < d; c += LANES)
                *(vec *)(out + c) = some_numbers(slot_at(values, bytes, seen, k, is_row), c, d - c < LANES ? d - c : LANES, is_short);
        for (int64_t k = first; is_short && IN_PAIRS && k < last; k += 2, out += width) {
            const uint16_t *a = (const uint16_t *)slot_at(values, bytes, seen, k, is_row);
            if (k + 1 == last) lay_pair(a, 0, d, out);
            else if (is_row && d == 4 * LANES) lay_pair(a, a + 4 * LANES, 4 * LANES, out); /* the usual size */
            else lay_pair(a, (const uint16_t *)slot_at(values, bytes, seen, k + 1, is_row), d, out);
        }
    }
    return is_short && IN_PAIRS ? (end - from + 1) / 2 : end - from;
}

/* By the numbers of the cache, and whether its slots follow each other. */
#define BY_KIND(call) (is_short ? is_row ? call(1, 1) : call(1, 0) : is_row ? call(0, 1) : call(0, 0))

static void turn_keys(const void *keys, const int32_t *seen, int64_t from, int64_t end, int64_t d, float *out,
                      int64_t is_short, int is_row) {
#define CALL(SHORT, ROW) transpose(keys, seen, from, end, d, out, SHORT, ROW)
    BY_KIND(CALL);
#undef CALL
}

static int64_t laid_values(const void *values, const int32_t *seen, int64_t from, int64_t end, int64_t d,
                           float *out, int64_t is_short, int is_row) {
#define CALL(SHORT, ROW) lay_values(values, seen, from, end, d, out, SHORT, ROW)
    return BY_KIND(CALL);
#undef CALL
}
