/* Products of rows with levels. If there are instructions for bytes, inputs are also whole numbers: these instructions
   multiply four times as many numbers at once as in fp32, and levels as they are stored.

   The inputs of a row are rounded group by group to multiples of a power of two, and these whole numbers are split into
   DIGITS of 8 bits with a sign, one product each. The number of digits decides not only the speed, but also how near p
   is to the p of the weights: two digits hold 15 bits, and inputs in bf16, of 8, are rounded only if they are below a
   64th of the largest of their group, by less than bf16 rounded that one. Three hold 23, for inputs in fp32, which are
   rounded by a unit or two in the last place of the largest. (One digit, as in llama.cpp, is visible rounding: p would
   be another model's. It reads one row as fast, since a row waits for its weights, and 8 rows in less time.)

   Sums of a group are exact, so that they depend neither on the order nor on how many rows are read at once. */
enum { SHORT_DIGITS = 2, WIDE_DIGITS = 3 };

/* Words of a group of a row: what its whole numbers are multiplied by, where the sum of each digit's products begins, and the
   digits, of four inputs in a word. */
static inline int64_t words_of_group(int digits) { return 1 + digits * (1 + GROUP / 4); }

#ifdef BYTE_DOTS
enum { TAKES_DIGITS = 1 };

/* A group of inputs as digits; with the sums begin what was added to levels is taken back. */
INLINED take_apart(const float *x, int32_t *out, const int digits, const int size) {
    int32_t numbers[GROUP], most = 0;
    ints largest = {0};
    for (int i = 0; i < GROUP; i += LANES) {
        ints v = *(const ints *)(x + i) & 0x7fffffff, is_more = v > largest;
        largest = (v & is_more) | (largest & ~is_more);
    }
    for (int lane = 0; lane < LANES; lane++) most = largest[lane] > most ? largest[lane] : most;
    int is_known = most < 0x7f800000, exponent = is_known && most >> 23 > 27 ? most >> 23 : 27; /* not below 1e-30 */
    float factor, back;
    uint32_t up = (uint32_t)(127 + 8 * digits - 3 - (exponent - 127)) << 23, down = (uint32_t)(127 - 8 * digits + 3 + (exponent - 127)) << 23;
    memcpy(&factor, &up, 4), memcpy(&back, &down, 4);
    if (!is_known) factor = 0, back = NAN; /* an infinity or NaN among them: so are the results */
    memcpy(out, &back, 4);
    for (int i = 0; i < GROUP; i += LANES) {
        const vec round = (vec){0} + 0x1.8p23f; /* to the nearest whole number */
        vec v = *(const vec *)(x + i) * factor + round;
        ints whole = ((ints)v - (ints)round) & -is_known;
        memcpy(numbers + i, &whole, sizeof whole);
    }
    int8_t *to = (int8_t *)(out + 1 + digits);
    UNROLLED for (int d = 0; d < digits; d++, to += GROUP) {
        int32_t sum = 0;
        for (int i = 0; i < GROUP; i++) {
            int32_t digit = (int8_t)numbers[i];
            to[i] = digit, sum += digit, numbers[i] = (numbers[i] - digit) >> 8;
        }
        out[1 + d] = -added_to_levels(size) * sum;
    }
}

/* Rows of fp32 numbers, `groups` groups each, as digits in their place. */
static void take_rows_apart(float *x, int64_t stride, int64_t groups, int64_t rows, int64_t digits, int64_t size) {
    int64_t words = words_of_group(digits);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t g = 0; g < groups; g++) {
            float group[GROUP];
            memcpy(group, x + r * stride + g * GROUP, sizeof group);
            int32_t *to = (int32_t *)(x + r * stride) + g * words;
#define TAKEN(DIGITS) (size == 8 ? take_apart(group, to, DIGITS, 8) : take_apart(group, to, DIGITS, 4))
            digits == SHORT_DIGITS ? TAKEN(SHORT_DIGITS) : TAKEN(WIDE_DIGITS);
#undef TAKEN
        }
}

/* `sum` and in each lane the products of four levels with four digits. */
static inline ints add_dots(ints sum, bits levels, int32_t digits) {
#if BYTES == 64
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)levels, _mm512_set1_epi32(digits));
#elif BYTES == 32
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)levels, _mm256_set1_epi32(digits));
#else
    return (ints)vdotq_s32((int32x4_t)sum, (int8x16_t)levels, vreinterpretq_s8_s32(vdupq_n_s32(digits)));
#endif
}

/* The sums of `rows` rows of digits and one block of weights; all but the number of groups is known at compile time. */
INLINED dotted(const int32_t *x, int64_t x_stride, const void *weight, int64_t groups, float *out, const int rows,
               const int size, const int half, const int digits) {
    const int64_t step = words_of_group(digits);
    const char *w = weight;
    vec total[MOST_LEVEL_ROWS][2];
    UNROLLED for (int r = 0; r < rows; r++) total[r][0] = total[r][1] = (vec){0};
    for (int64_t g = 0; g < groups; g++, w += (1 + 2 * size) * BYTES, x += step) {
        ints sum[MOST_LEVEL_ROWS][2][WIDE_DIGITS];
        UNROLLED for (int r = 0; r < rows; r++)
            UNROLLED for (int d = 0; d < digits; d++) sum[r][0][d] = sum[r][1][d] = (ints){0} + x[r * x_stride + 1 + d];
        fetch_weights(w + PAGE, (1 + 2 * size) * BYTES);
        UNROLLED for (int i = 0; i < size; i++) {
            bits low = *(const bits *)(w + (1 + 2 * i) * BYTES), high = *(const bits *)(w + (2 + 2 * i) * BYTES);
            UNROLLED for (int part = 0; part < 8 / size; part++) {
                bits of_low = low, of_high = high;
                if (size == 4) of_low = low >> 4 * part & 0x0f0f0f0f, of_high = high >> 4 * part & 0x0f0f0f0f;
                UNROLLED for (int r = 0; r < rows; r++)
                    UNROLLED for (int d = 0; d < digits; d++) {
                        int32_t four = x[r * x_stride + 1 + digits + d * (GROUP / 4) + i * (8 / size) + part];
                        sum[r][0][d] = add_dots(sum[r][0][d], of_low, four);
                        sum[r][1][d] = add_dots(sum[r][1][d], of_high, four);
                    }
            }
        }
        UNROLLED for (int r = 0; r < rows; r++) {
            float by;
            memcpy(&by, x + r * x_stride, 4);
            UNROLLED for (int high = 0; high < 2; high++) {
                vec found = __builtin_convertvector((sum[r][high][1] << 8) + sum[r][high][0], vec);
                if (digits == 3) found = add_product(found, __builtin_convertvector(sum[r][high][2], vec), 0x1p16f);
                total[r][high] = add_products(total[r][high], found * by, scales_at(w + high * (BYTES / 2), half));
            }
        }
    }
    UNROLLED for (int r = 0; r < rows; r++) memcpy(out + r * BLOCK, total[r], sizeof total[r]);
}
#define OF_LEVELS(ROWS, SIZE, HALF, DIGITS)                                                                            \
    static void levels_##ROWS##x##SIZE##x##HALF##x##DIGITS(PRODUCT_OF) {                                               \
        dotted(all_x, x_stride, weight, even / GROUP, out, ROWS, SIZE, HALF, DIGITS);                                  \
    }
#else
enum { TAKES_DIGITS };
static inline void take_rows_apart(float *x, int64_t stride, int64_t groups, int64_t rows, int64_t digits, int64_t size) {}

/* Level number `t` of each word. */
static inline vec level(bits words, int t, int size) {
#ifdef __AVX512F__
    if (size == 4) { /* the four lowest bits choose one of 16 numbers */
        const vec of = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
        return (vec)_mm512_permutexvar_ps((__m512i)(words >> 4 * t), (__m512)of);
    }
#endif
    return __builtin_convertvector((ints)(words << (32 - size * (t + 1))) >> (32 - size), vec);
}

/* The sums of `rows` rows of x, in fp32, and one block of weights; `rows`, `size`, `half` are known at compile time. */
INLINED level_product(const float *x, int64_t x_stride, const void *weight, int64_t groups, float *out, const int rows,
                      const int size, const int half) {
    const int in_a_word = 32 / size;
    const char *w = weight;
    vec total[MOST_LEVEL_ROWS][2];
    UNROLLED for (int r = 0; r < rows; r++) total[r][0] = total[r][1] = (vec){0};
    for (int64_t g = 0; g < groups; g++, w += (1 + 2 * size) * BYTES, x += GROUP) {
        vec sum[MOST_LEVEL_ROWS][2][2];
        UNROLLED for (int r = 0; r < rows; r++) sum[r][0][0] = sum[r][0][1] = sum[r][1][0] = sum[r][1][1] = (vec){0};
        for (int i = 0; i < size; i++)
            UNROLLED for (int high = 0; high < 2; high++) {
                bits words = *(const bits *)(w + (1 + 2 * i + high) * BYTES);
                UNROLLED for (int t = 0; t < in_a_word; t++) {
                    vec unpacked = level(words, t, size);
                    UNROLLED for (int r = 0; r < rows; r++)
                        sum[r][high][t % 2] = add_product(sum[r][high][t % 2], unpacked, x[r * x_stride + i * in_a_word + t]);
                }
            }
        UNROLLED for (int high = 0; high < 2; high++) {
            vec scales = scales_at(w + high * (BYTES / 2), half);
            UNROLLED for (int r = 0; r < rows; r++)
                total[r][high] = add_products(total[r][high], sum[r][high][0] + sum[r][high][1], scales);
        }
    }
    UNROLLED for (int r = 0; r < rows; r++) memcpy(out + r * BLOCK, total[r], sizeof total[r]);
}
#define OF_LEVELS(ROWS, SIZE, HALF, DIGITS)                                                                            \
    static void levels_##ROWS##x##SIZE##x##HALF##x##DIGITS(PRODUCT_OF) {                                               \
        level_product(all_x, x_stride, weight, even / GROUP, out, ROWS, SIZE, HALF);                                   \
    }
#endif

#define OF_ALL_ROWS(SIZE, HALF, DIGITS)                                                                                \
    OF_LEVELS(1, SIZE, HALF, DIGITS) OF_LEVELS(2, SIZE, HALF, DIGITS) OF_LEVELS(3, SIZE, HALF, DIGITS) OF_LEVELS(4, SIZE, HALF, DIGITS)
#define ALL_ROWS(SIZE, HALF, DIGITS)                                                                                   \
    {levels_1x##SIZE##x##HALF##x##DIGITS, levels_2x##SIZE##x##HALF##x##DIGITS, levels_3x##SIZE##x##HALF##x##DIGITS,    \
     levels_4x##SIZE##x##HALF##x##DIGITS}
#define OF_ALL_SIZES(HALF, DIGITS) OF_ALL_ROWS(8, HALF, DIGITS) OF_ALL_ROWS(4, HALF, DIGITS)
#define ALL_SIZES(HALF, DIGITS) {ALL_ROWS(8, HALF, DIGITS), ALL_ROWS(4, HALF, DIGITS)}
OF_ALL_SIZES(0, 2) OF_ALL_SIZES(1, 2) OF_ALL_SIZES(0, 3) OF_ALL_SIZES(1, 3)
static const Product LEVELS[2][2][2][MOST_LEVEL_ROWS] = {{ALL_SIZES(0, 2), ALL_SIZES(1, 2)}, {ALL_SIZES(0, 3), ALL_SIZES(1, 3)}};

/* The digits of the inputs of a map, and the product of so many rows with a block of levels. */
static inline int64_t digits_of(const Instruction *it) { return it->short_floats ? SHORT_DIGITS : WIDE_DIGITS; }
static inline Product product_of(const Instruction *it, int64_t rows) {
    return LEVELS[digits_of(it) == WIDE_DIGITS][it->level_bits >= HALF_SCALES][bits_of(it) == 4][rows - 1];
}

/* The inputs that a map's weights are for, filled up, and the bytes of a block of them. */
static inline int64_t inputs_of(const Instruction *it) {
    return it->level_bits ? groups_of(it->inner) * GROUP : filled_up(it->inner);
}
static inline int64_t block_bytes(const Instruction *it) {
    if (it->level_bits) return groups_of(it->inner) * (1 + 2 * bits_of(it)) * BYTES;
    return BLOCK * filled_up(it->inner) * (it->short_floats ? 2 : 4);
}
