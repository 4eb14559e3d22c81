/* Products of rows with weights in 8 or 4 bits. */

/* Weights in 8 or 4 bits: whole levels, times a scale for each GROUP inputs of an output. A block of BLOCK outputs lies
   group after group: the scales, in bf16 or fp16, of two outputs in a word, and the levels, of 32 / size consecutive inputs of an
   output in a word. Lane j of a vector belongs to output j, so that shifts in registers unpack them. Inputs and sums are
   fp32, whatever the model computes in, and the sums of a group are added up before its scale is applied. */
enum { GROUP = 32, MOST_LEVEL_ROWS = 4 };
static inline int64_t groups_of(int64_t k) { return (k + GROUP - 1) / GROUP; }

/* The bytes that `pack_levels` writes. */
int64_t levels_size(int64_t n, int64_t k, int64_t size) {
    return (n + BLOCK - 1) / BLOCK * groups_of(k) * (1 + 2 * size) * BYTES;
}

/* Levels [N, K] of `size` bits, and scales [N, groups] of 16 bits, as blocks of outputs. */
void pack_levels(const int8_t *levels, const uint16_t *scales, void *out, int64_t n, int64_t k, int64_t size) {
    int64_t groups = groups_of(k), in_a_word = 32 / size;
    memset(out, 0, levels_size(n, k, size));
    for (int64_t row = 0; row < n; row++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t lane = row % LANES, high = row % BLOCK / LANES;
            uint32_t *to = (uint32_t *)out + (row / BLOCK * groups + g) * (1 + 2 * size) * LANES + lane;
            *to |= (uint32_t)scales[row * groups + g] << 16 * high;
            for (int64_t i = 0; i < GROUP && g * GROUP + i < k; i++) {
                uint32_t level = (uint32_t)levels[row * k + g * GROUP + i] & ((1u << size) - 1);
                to[(1 + i / in_a_word * 2 + high) * LANES] |= level << i % in_a_word * size;
            }
        }
}

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

/* The sums of `rows` rows of x and one block of weights; `rows`, `size` and `half` are known where this is compiled. */
static inline __attribute__((always_inline)) void level_product(const float *x, int64_t x_stride, const void *weight,
                                                                int64_t groups, float *out, const int rows, const int size,
                                                                const int half) {
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
        bits scales = *(const bits *)w;
        UNROLLED for (int r = 0; r < rows; r++) {
            total[r][0] = add_products(total[r][0], sum[r][0][0] + sum[r][0][1], low_scales(scales, half));
            total[r][1] = add_products(total[r][1], sum[r][1][0] + sum[r][1][1], high_scales(scales, half));
        }
    }
    UNROLLED for (int r = 0; r < rows; r++) memcpy(out + r * BLOCK, total[r], sizeof total[r]);
}
#define OF_LEVELS(ROWS, SIZE, HALF)                                                                                    \
    static void levels_##ROWS##x##SIZE##x##HALF(const void *x, int64_t x_stride, const void *weight, int64_t even,     \
                                                float *out) {                                                          \
        level_product(x, x_stride, weight, even / GROUP, out, ROWS, SIZE, HALF);                                       \
    }
#define OF_ALL_ROWS(SIZE, HALF) OF_LEVELS(1, SIZE, HALF) OF_LEVELS(2, SIZE, HALF) OF_LEVELS(3, SIZE, HALF) OF_LEVELS(4, SIZE, HALF)
OF_ALL_ROWS(8, 0) OF_ALL_ROWS(4, 0) OF_ALL_ROWS(8, 1) OF_ALL_ROWS(4, 1)
#define ALL_ROWS(SIZE, HALF) {levels_1x##SIZE##x##HALF, levels_2x##SIZE##x##HALF, levels_3x##SIZE##x##HALF, levels_4x##SIZE##x##HALF}
static const Product LEVELS[2][2][MOST_LEVEL_ROWS] = {{ALL_ROWS(8, 0), ALL_ROWS(4, 0)}, {ALL_ROWS(8, 1), ALL_ROWS(4, 1)}};

/* The bits of a level of a map's weights, and the product of so many rows with a block of them. */
static inline int64_t bits_of(const Instruction *it) { return it->level_bits & ~(int64_t)HALF_SCALES; }
static inline Product product_of(const Instruction *it, int64_t rows) {
    return LEVELS[it->level_bits >= HALF_SCALES][bits_of(it) == 4][rows - 1];
}

/* The inputs that a map's weights are for, filled up, and the bytes of a block of them. */
static inline int64_t inputs_of(const Instruction *it) {
    return it->level_bits ? groups_of(it->inner) * GROUP : filled_up(it->inner);
}
static inline int64_t block_bytes(const Instruction *it) {
    if (it->level_bits) return groups_of(it->inner) * (1 + 2 * bits_of(it)) * BYTES;
    return BLOCK * filled_up(it->inner) * (it->short_floats ? 2 : 4);
}
