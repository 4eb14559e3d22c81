/* A decoding step as a list of instructions on rows of floats: one call, one team of threads.

   Values lie in an arena as fp32, rounded to bf16 after each operation where the model computes in bf16, so that they
   round where torch's operations do. Sums of a linear map go along the inner size in order, whatever the number of rows.

   L rows, K inner size, N outputs of a map, H query heads, G key heads, C slots, D channels of a head. */

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES
#endif

/* A vector is a register of this machine: one that is spread over two or four costs ten times as much. */
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef float vec __attribute__((vector_size(BYTES), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(BYTES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(BYTES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(BYTES / 2), aligned(2)));
enum { LANES = BYTES / 4, BLOCK = 2 * LANES };
enum { EMBED, LOAD, STORE, NORM, LINEAR, WRITE, ATTEND, ADD, MUL, SCALE, SHIFT, POWER, RELU, SILU, GELU, GELU_TANH, TANH, PICK, ROTATE, DIVIDE, SPREAD };

/* Where a value lies: at `at` * L + `column` of the arena, `stride` floats from row to row. */
typedef struct { int64_t at, column, stride; } Ref;

typedef struct {
    int64_t op, width, inner, heads, key_heads, short_floats, barrier, centred;
    int64_t outside[4]; /* numbers of tensors from outside: what they are depends on the operation */
    int64_t slots, bias_texts, bias_heads, bias_rows; /* numbers of sizes from outside; the bias' are 1 or not */
    Ref out, x, y, z;
    const void *weight, *bias, *norm_weight, *norm_bias;
    double scale, epsilon;
    int64_t activation, residual, normed, period; /* of y's columns, which are repeated to x's width */
    int64_t level_bits; /* of a linear map's weights: 8, 4, or 0 where they are numbers of the model */
    int64_t short_cache; /* whether keys and values outside are bf16 */
} Instruction;

static inline float wide(uint16_t b) { uint32_t u = (uint32_t)b << 16; float f; memcpy(&f, &u, 4); return f; }

static inline uint16_t narrow(float f) {
    uint32_t u; memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float rounded(float f, int64_t is_short) { return is_short ? wide(narrow(f)) : f; }

/* `v` rounded to bf16, as `narrow` does, but for numbers below 1.2e-38 and the bits of a NaN. */
static inline vec shortened(vec v) {
#ifdef __AVX512BF16__
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)v)), 16);
#else
    bits u = (bits)v, nan = (bits)((u & 0x7fffffffu) > 0x7f800000u);
    return (vec)((~nan & (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u) | (nan & 0x7fc00000u));
#endif
}

static inline float weight_at(const void *weight, int64_t i, int64_t is_short) {
    return is_short ? wide(((const uint16_t *)weight)[i]) : ((const float *)weight)[i];
}

/* Loops over numbers that do not overlap, which the compiler vectorises. */
static void round_all(float *restrict v, int64_t count) {
    for (int64_t i = 0; i < count; i++) v[i] = wide(narrow(v[i]));
}

static void shorten_all(const float *restrict v, uint16_t *restrict out, int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = narrow(v[i]);
}

/* Of numbers that are bf16 already, as all values of an arena are where the model computes in it. */
static void take_short(const float *restrict v, uint16_t *restrict out, int64_t count) {
    int64_t i = 0;
#ifdef __AVX512BW__
    for (; i + 2 * LANES <= count; i += 2 * LANES) { /* the upper halves of two vectors */
        static const uint16_t upper[2 * LANES] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                  33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
        __m512i low = _mm512_loadu_si512(v + i), high = _mm512_loadu_si512(v + i + LANES);
        _mm512_storeu_si512(out + i, _mm512_permutex2var_epi16(low, _mm512_loadu_si512(upper), high));
    }
#endif
    for (; i < count; i++) { uint32_t u; memcpy(&u, v + i, 4); out[i] = u >> 16; }
}

static void widen_all(const uint16_t *restrict v, float *restrict out, int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = wide(v[i]);
}

static void add_all(float *restrict v, const float *restrict more, int64_t count) {
    for (int64_t i = 0; i < count; i++) v[i] += more[i];
}

/* exp for x <= 0, to 2 units in the last place; 0 below -80. In vectors: left to itself the compiler would branch. */
static inline vec exp_below(vec x) {
    ints kept = ~(x < -80.0f); /* a NaN is */
    x = (vec)((ints)x & kept);
    ints whole = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);
    vec n = __builtin_convertvector(whole, vec), r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vec)((ints)(p * (vec)((whole + 127) << 23)) & kept);
}

/* exp((v - most) * factor) for each of v, none of which is above `most`. */
static void raise_all(float *v, int64_t count, float most, float factor) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) *(vec *)(v + i) = exp_below((*(vec *)(v + i) - most) * factor);
    float left[LANES] = {0};
    memcpy(left, v + i, (count - i) * sizeof(float));
    *(vec *)left = exp_below((*(vec *)left - most) * factor);
    memcpy(v + i, left, (count - i) * sizeof(float));
}

/* Inputs come in pairs, and with tiles 32 at a time: `k` and the zeros that fill up the last of them. */
#ifdef TILES
enum { INPUTS = 32 };
#else
enum { INPUTS = 2 };
#endif
static inline int64_t filled_up(int64_t k) { return (k + INPUTS - 1) / INPUTS * INPUTS; }

/* The number of floats (bf16: of 16 bits) that `pack` writes. */
int64_t packed_size(int64_t n, int64_t k) { return (n + BLOCK - 1) / BLOCK * BLOCK * filled_up(k); }

/* Where the weight of output j of a block and input i goes, among the block's weights. In bf16 two share a word: with
   instructions for bf16 two inputs of one output, which these multiply and add at once, and else two outputs. */
static inline int64_t place(int64_t i, int64_t j, int64_t is_short) {
    if (!is_short) return i * BLOCK + j;
#ifdef __AVX512BF16__
    return (i / 2 * BLOCK + j) * 2 + i % 2;
#else
    return i * BLOCK + (j % LANES) * 2 + j / LANES;
#endif
}

/* Weights [N, K] as blocks of BLOCK outputs, input by input. */
void pack(const void *weight, void *out, int64_t n, int64_t k, int64_t is_short) {
    int64_t even = filled_up(k), blocks = (n + BLOCK - 1) / BLOCK;
    memset(out, 0, blocks * BLOCK * even * (is_short ? 2 : 4));
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < k; i++) {
            int64_t to = row / BLOCK * BLOCK * even + place(i, row % BLOCK, is_short);
            if (is_short) ((uint16_t *)out)[to] = ((const uint16_t *)weight)[row * k + i];
            else ((float *)out)[to] = ((const float *)weight)[row * k + i];
        }
}

/* Weights are fetched before they are needed: past the end of a page the processor's own fetching stops, and what another
   model has pushed out of the cache comes from memory. A product of several rows fetches the same place of its next tile,
   or of this one where tiles are larger than what the cache nearby should hold; one row reads as fast without. */
#define UNROLLED _Pragma("GCC unroll 16")
enum { LINE = 64, NEARBY = 1 << 17, AHEAD = 1 << 14, AT_FIRST = 1 << 15 }; /* bytes */

static inline void fetch(const char *from, int64_t bytes) {
    UNROLLED for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(from + at, 0, 2);
}

/* The empty statement keeps the compiler from holding inputs from block to block, which would push sums out of registers. */
#define READ_AGAIN(x, step_bytes)                                                                                      \
    __asm__ volatile("" : "+r"(x));                                                                                    \
    fetch((const char *)weight + (b * even + i) * BLOCK * sizeof(uint16_t) + ahead, step_bytes)
#define READ_ON(x, step_bytes) (void)ahead

/* One product of ROWS rows of x and BLOCKS blocks of weights: sums over inputs in order, each in a register. `x` is fp32
   or, with instructions for bf16, bf16; `x_stride` and `even` count its numbers. */
#define PRODUCT(name, ROWS, BLOCKS, NUMBER, STEP, AGAIN, WEIGHTS, ADD_UP)                                              \
    static void name(const void *all_x, int64_t x_stride, const void *weight, int64_t even, float *out) {              \
        const NUMBER *x = all_x;                                                                                       \
        const int64_t tile = BLOCKS * even * BLOCK * sizeof(uint16_t), ahead = tile <= NEARBY ? tile : AHEAD;          \
        vec sum[ROWS][BLOCKS][2];                                                                                      \
        UNROLLED for (int r = 0; r < ROWS; r++)                                                                        \
            UNROLLED for (int b = 0; b < BLOCKS; b++) sum[r][b][0] = sum[r][b][1] = (vec){0};                          \
        for (int64_t i = 0; i < even; i += STEP)                                                                       \
            UNROLLED for (int b = 0; b < BLOCKS; b++) {                                                                \
                if (ROWS > 1) { AGAIN(x, STEP * BLOCK * (int64_t)sizeof(uint16_t)); }                                  \
                WEIGHTS                                                                                                \
                UNROLLED for (int r = 0; r < ROWS; r++) {                                                              \
                    ADD_UP                                                                                             \
                }                                                                                                      \
            }                                                                                                          \
        UNROLLED for (int r = 0; r < ROWS; r++)                                                                        \
            UNROLLED for (int b = 0; b < BLOCKS; b++) memcpy(out + (r * BLOCKS + b) * BLOCK, sum[r][b], sizeof sum[r][b]); \
    }
#define WIDE_WEIGHTS                                                                                                   \
    const float *w = (const float *)weight + (b * even + i) * BLOCK;                                                   \
    vec low = *(const vec *)w, high = *(const vec *)(w + LANES);
#define WIDE_ADD_UP                                                                                                    \
    sum[r][b][0] += low * x[r * x_stride + i];                                                                         \
    sum[r][b][1] += high * x[r * x_stride + i];
#ifdef __AVX512BF16__
#define SHORT_NUMBER uint16_t
#define SHORT_STEP 2
#define SHORT_WEIGHTS                                                                                                  \
    const uint16_t *w = (const uint16_t *)weight + (b * even + i) * BLOCK;                                             \
    __m512bh low = (__m512bh)_mm512_loadu_si512(w), high = (__m512bh)_mm512_loadu_si512(w + 2 * LANES);
#define SHORT_ADD_UP                                                                                                   \
    int32_t two;                                                                                                       \
    memcpy(&two, x + r * x_stride + i, 4);                                                                             \
    __m512bh both = (__m512bh)_mm512_set1_epi32(two);                                                                  \
    sum[r][b][0] = (vec)_mm512_dpbf16_ps((__m512)sum[r][b][0], low, both);                                             \
    sum[r][b][1] = (vec)_mm512_dpbf16_ps((__m512)sum[r][b][1], high, both);
#else
#define SHORT_NUMBER float
#define SHORT_STEP 1
#define SHORT_WEIGHTS                                                                                                  \
    bits both = *(const bits *)((const uint16_t *)weight + (b * even + i) * BLOCK);                                    \
    vec low = (vec)(both << 16), high = (vec)(both & 0xffff0000u);
#define SHORT_ADD_UP WIDE_ADD_UP
#endif
#define BOTH(ROWS, BLOCKS)                                                                                             \
    PRODUCT(wide_##ROWS##x##BLOCKS, ROWS, BLOCKS, float, 1, READ_ON, WIDE_WEIGHTS, WIDE_ADD_UP)                        \
    PRODUCT(short_##ROWS##x##BLOCKS, ROWS, BLOCKS, SHORT_NUMBER, SHORT_STEP, READ_AGAIN, SHORT_WEIGHTS, SHORT_ADD_UP)
/* Tiles, as (rows, blocks), whose sums, weights and an input fit the registers of this machine. The sums of a tile are
   at most MOST_ROWS blocks, and the largest tiles have one block: the parts that more rows are cut into differ by one. */
#if defined(__AVX512F__) || defined(__aarch64__) /* 32 registers */
enum { MOST_ROWS = 8 };
#define WIDE_TILES(T) T(wide, 1, 4) T(wide, 2, 4) T(wide, 3, 2) T(wide, 4, 2) T(wide, 5, 1) T(wide, 6, 1) T(wide, 7, 1) T(wide, 8, 1)
#define SHORT_TILES(T) T(short, 1, 4) T(short, 2, 4) T(short, 3, 2) T(short, 4, 1) T(short, 5, 1) T(short, 6, 1) T(short, 7, 1) T(short, 8, 1)
BOTH(2, 4) BOTH(3, 2) BOTH(4, 2) BOTH(7, 1) BOTH(8, 1)
#else /* 16. fp32 is limited by its loads, and gains nothing from the larger tiles */
enum { MOST_ROWS = 6 };
#define WIDE_TILES(T) T(wide, 1, 4) T(wide, 2, 2) T(wide, 3, 1) T(wide, 4, 1) T(wide, 5, 1) T(wide, 6, 1)
#define SHORT_TILES(T) T(short, 1, 4) T(short, 2, 3) T(short, 3, 2) T(short, 4, 1) T(short, 5, 1) T(short, 6, 1)
BOTH(2, 2) BOTH(2, 3) BOTH(3, 2)
#endif
BOTH(1, 1) BOTH(2, 1) BOTH(3, 1) BOTH(4, 1) BOTH(5, 1) BOTH(6, 1) BOTH(1, 4)

typedef void (*Product)(const void *, int64_t, const void *, int64_t, float *);
#define ONE_BLOCK_OF(kind, ROWS, BLOCKS) kind##_##ROWS##x1,
#define TILE_OF(kind, ROWS, BLOCKS) kind##_##ROWS##x##BLOCKS,
#define BLOCKS_IN(kind, ROWS, BLOCKS) BLOCKS,
static const Product ONE_BLOCK[2][MOST_ROWS] = {{WIDE_TILES(ONE_BLOCK_OF)}, {SHORT_TILES(ONE_BLOCK_OF)}};
static const Product TILE[2][MOST_ROWS] = {{WIDE_TILES(TILE_OF)}, {SHORT_TILES(TILE_OF)}};
static const int BLOCKS_OF[2][MOST_ROWS] = {{WIDE_TILES(BLOCKS_IN)}, {SHORT_TILES(BLOCKS_IN)}};

/* How many rows a product reads at once, the last one perhaps fewer: `rows` in the fewest parts of at most `most`. */
static inline int64_t at_once(int64_t rows, int64_t most) {
    int64_t parts = (rows + most - 1) / most;
    return (rows + parts - 1) / parts;
}

/* Matrix registers (AMX): one instruction multiplies up to 16 rows of 32 inputs with the weights of 16 outputs, which lie as
   `pack` puts them for AVX-512, and takes as long for 16 rows as for one. So a product reads its weights at the speed of
   the cache they are in, whatever the number of rows, and one row is summed in the order of many. */
#ifdef TILES
enum { OF_A_TILE = 16, MOST_TILED = 2 * OF_A_TILE };
enum { TILE_DATA = 18, ASK = 0x1023 }; /* as Linux numbers them: a process asks before it uses these registers */
static int has_tiles;
__attribute__((constructor)) static void ask_for_tiles(void) { has_tiles = syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0; }

/* Shape this thread's registers for maps of `rows` rows: 0 to 3 for sums and 4 and 5 for inputs, of the first 16 rows
   and of the others, 6 and 7 for weights. */
static void shape_tiles(int64_t rows) {
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    int64_t few = at_once(rows, MOST_TILED), upper = few < OF_A_TILE ? few : OF_A_TILE, lower = few - upper;
    uint8_t of[] = {upper, upper, lower, lower, upper, lower, OF_A_TILE, OF_A_TILE};
    for (int i = 0; i < 8; i++) shape.rows[i] = of[i], shape.bytes[i] = of[i] ? LINE : 0;
    __asm__ volatile("ldtilecfg %0" : : "m"(shape)); /* GCC 12's intrinsic may lose what was written to `shape` */
}

static inline void release_tiles(void) { _tile_release(); }

/* The sums of `rows` rows of x and one block of weights. */
static void tiled(const uint16_t *x, int64_t x_stride, const void *weight, int64_t even, float *out, int64_t rows) {
    const char *w = weight, *upper = (const char *)x, *lower = (const char *)(x + OF_A_TILE * x_stride);
    const int64_t row = x_stride * 2, line = BLOCK * 4;
    __asm__ volatile("" : : : "memory"); /* GCC does not know that the loads below read memory */
    _tile_zero(0); _tile_zero(1);
    if (rows <= OF_A_TILE) {
        for (int64_t i = 0; i < even; i += INPUTS, upper += LINE, w += INPUTS / 2 * line) {
            _tile_loadd(4, upper, row);
            _tile_loadd(6, w, line); _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w + LINE, line); _tile_dpbf16ps(1, 4, 7);
        }
    } else {
        _tile_zero(2); _tile_zero(3);
        for (int64_t i = 0; i < even; i += INPUTS, upper += LINE, lower += LINE, w += INPUTS / 2 * line) {
            _tile_loadd(4, upper, row); _tile_loadd(5, lower, row);
            _tile_loadd(6, w, line); _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(2, 5, 6);
            _tile_loadd(7, w + LINE, line); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, out + OF_A_TILE * BLOCK, line); _tile_stored(3, out + OF_A_TILE * BLOCK + LANES, line);
    }
    _tile_stored(0, out, line); _tile_stored(1, out + LANES, line);
}
#else
enum { has_tiles, MOST_TILED = MOST_ROWS };
static inline void shape_tiles(int64_t rows) {}
static inline void release_tiles(void) {}
static inline void tiled(const uint16_t *x, int64_t x_stride, const void *weight, int64_t even, float *out, int64_t rows) {}
#endif

/* Whether bf16 is multiplied in matrix registers. */
int64_t uses_tiles(void) { return has_tiles; }

/* Weights in 8 or 4 bits: whole levels, times a scale for each GROUP inputs of an output. A block of BLOCK outputs lies
   group after group: the scales, in bf16, of two outputs in a word, and the levels, of 32 / size consecutive inputs of an
   output in a word. Lane j of a vector belongs to output j, so that shifts in registers unpack them. Inputs and sums are
   fp32, whatever the model computes in, and the sums of a group are added up before its scale is applied. */
enum { GROUP = 32, MOST_LEVEL_ROWS = 4 };
static inline int64_t groups_of(int64_t k) { return (k + GROUP - 1) / GROUP; }

/* The bytes that `pack_levels` writes. */
int64_t levels_size(int64_t n, int64_t k, int64_t size) {
    return (n + BLOCK - 1) / BLOCK * groups_of(k) * (1 + 2 * size) * BYTES;
}

/* Levels [N, K] of `size` bits, and scales [N, groups] in bf16, as blocks of outputs. */
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

/* The sums of `rows` rows of x and one block of weights; `rows` and `size` are known where this is compiled. */
static inline __attribute__((always_inline)) void level_product(const float *x, int64_t x_stride, const void *weight,
                                                                int64_t groups, float *out, const int rows, const int size) {
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
                        sum[r][high][t % 2] += unpacked * x[r * x_stride + i * in_a_word + t];
                }
            }
        bits scales = *(const bits *)w;
        UNROLLED for (int r = 0; r < rows; r++) {
            total[r][0] += (sum[r][0][0] + sum[r][0][1]) * (vec)(scales << 16);
            total[r][1] += (sum[r][1][0] + sum[r][1][1]) * (vec)(scales & 0xffff0000u);
        }
    }
    UNROLLED for (int r = 0; r < rows; r++) memcpy(out + r * BLOCK, total[r], sizeof total[r]);
}
#define OF_LEVELS(ROWS, SIZE)                                                                                          \
    static void levels_##ROWS##x##SIZE(const void *x, int64_t x_stride, const void *weight, int64_t even, float *out) {\
        level_product(x, x_stride, weight, even / GROUP, out, ROWS, SIZE);                                             \
    }
OF_LEVELS(1, 8) OF_LEVELS(2, 8) OF_LEVELS(3, 8) OF_LEVELS(4, 8) OF_LEVELS(1, 4) OF_LEVELS(2, 4) OF_LEVELS(3, 4) OF_LEVELS(4, 4)
static const Product LEVELS[2][MOST_LEVEL_ROWS] = {{levels_1x8, levels_2x8, levels_3x8, levels_4x8},
                                                   {levels_1x4, levels_2x4, levels_3x4, levels_4x4}};

/* The inputs that a map's weights are for, filled up, and the bytes of a block of them. */
static inline int64_t inputs_of(const Instruction *it) {
    return it->level_bits ? groups_of(it->inner) * GROUP : filled_up(it->inner);
}
static inline int64_t block_bytes(const Instruction *it) {
    if (it->level_bits) return groups_of(it->inner) * (1 + 2 * it->level_bits) * BYTES;
    return BLOCK * filled_up(it->inner) * (it->short_floats ? 2 : 4);
}

static float activated(float v, int64_t kind) {
    switch (kind) {
    case RELU: return v < 0 ? 0 : v;
    case GELU: return 0.5f * v * (1.0f + erff(v * 0.70710678118f));
    case TANH: return tanhf(v);
    default: return v;
    }
}

static inline vec sigmoid(vec x) {
    bits below = (bits)(x < 0.0f), one = (bits)((vec){0} + 1.0f);
    vec e = exp_below((vec)((bits)x | 0x80000000u)); /* of -|x| */
    return (vec)(((bits)e & below) | (one & ~below)) / (1.0f + e);
}

/* v sigmoid(v), or GELU by tanh, which is v sigmoid(2 u). */
static inline vec gated(vec v, int64_t kind) {
    return v * sigmoid(kind == SILU ? v : 1.5957691216f * (v + 0.044715f * v * v * v));
}

static void activate_all(const float *v, float *out, int64_t count, int64_t kind) {
    int64_t i = 0;
    if (kind == SILU || kind == GELU_TANH) {
        for (; i + LANES <= count; i += LANES) *(vec *)(out + i) = gated(*(const vec *)(v + i), kind);
        float left[LANES] = {0};
        memcpy(left, v + i, (count - i) * sizeof(float));
        *(vec *)left = gated(*(vec *)left, kind);
        memcpy(out + i, left, (count - i) * sizeof(float));
    } else for (; i < count; i++) out[i] = activated(v[i], kind);
}

/* Column `number` of a row, past its last one of `more`, or minus infinity where there is none; ~number: its negative. */
static inline float picked(const float *row, const float *more, int64_t number, int64_t width) {
    int64_t column = number < 0 ? ~number : number;
    float v = column < width ? row[column] : more ? more[column - width] : -INFINITY;
    return number < 0 ? -v : v;
}

static float power(float v, float exponent) {
    return exponent == 2 ? v * v : exponent == 3 ? v * v * v : powf(v, exponent);
}

static void add_bias(float *restrict v, const void *bias, int64_t from, int64_t count, int64_t is_short) {
    if (is_short) for (int64_t i = 0; i < count; i++) v[i] += wide(((const uint16_t *)bias)[from + i]);
    else add_all(v, (const float *)bias + from, count);
}

/* The last channels, fewer than a vector has, and zeros. In loops over single numbers the compiler would round the sums of
   some tiles once a product and those of others twice. */
static inline vec last_channels(const float *v, int64_t count) {
#ifdef __AVX512F__
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1 << count) - 1), v);
#else
    vec some = {0};
    memcpy(&some, v, count * sizeof(float));
    return some;
#endif
}

/* Of `a` and then `b`, the first and the second of each two neighbours. */
typedef struct { vec first, second; } Neighbours;
#if BYTES == 64
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif BYTES == 32
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#endif
static inline Neighbours neighbours(vec a, vec b) {
#ifdef __clang__
    return (Neighbours){__builtin_shufflevector(a, b, EVEN), __builtin_shufflevector(a, b, ODD)};
#else
    ints even = {EVEN};
    return (Neighbours){__builtin_shuffle(a, b, even), __builtin_shuffle(a, b, even + 1)};
#endif
}

/* The sums of neighbours of `a`, then those of `b`. */
static inline vec of_neighbours(vec a, vec b) {
    Neighbours of = neighbours(a, b);
    return of.first + of.second;
}

static inline vec larger(vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    bits is_a = (bits)(a > b);
    return (vec)(((bits)a & is_a) | ((bits)b & ~is_a));
#endif
}

static inline float most_of_lanes(vec v) {
    for (int lanes = LANES; lanes > 1; lanes /= 2) {
        Neighbours of = neighbours(v, v);
        v = larger(of.first, of.second);
    }
    return v[0];
}

static inline float sum_of_lanes(vec v) {
    for (int lanes = LANES; lanes > 1; lanes /= 2) v = of_neighbours(v, v);
    return v[0];
}

/* The sum of the numbers less `mean`, or of their squares: in four vectors, none of which waits for another. */
static inline float sum_around(const float *x, int64_t width, float mean, const int is_squared) {
    vec sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        UNROLLED for (int j = 0; j < 4; j++) {
            vec v = *(const vec *)(x + i + j * LANES) - mean;
            sum[j] += is_squared ? v * v : v;
        }
    float total = sum_of_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (const float *at = x + i; at < x + width; at++) total += is_squared ? (*at - mean) * (*at - mean) : *at - mean;
    return total;
}

/* The first `count` numbers of v: as floats, or to `shorts` those of a bf16 vector. */
static inline void put(vec v, float *out, uint16_t *shorts, int64_t count) {
    if (shorts) {
        halves h = __builtin_convertvector((bits)v >> 16, halves);
        memcpy(shorts, &h, count * sizeof(uint16_t));
    } else memcpy(out, &v, count * sizeof(float));
}

/* Root mean square norm, or with `centred` layer norm, of rows: in bf16 to `shorts`, or else to `out`. Its weights are fp32,
   whatever the model computes in. Some rows' sums come first, since a row waits long for its own. */
static void norm_rows(const Instruction *it, const float *x, int64_t x_stride, float *out, uint16_t *shorts, int64_t stride,
                      int64_t width, int64_t rows) {
    enum { AT_ONCE = 16 };
    const float *weight = it->norm_weight, *bias = it->norm_bias;
    for (int64_t first = 0, end; first < rows; first = end) {
        struct { float mean, factor; } of[AT_ONCE];
        end = first + AT_ONCE < rows ? first + AT_ONCE : rows;
        for (int64_t r = first; r < end; r++) {
            const float *row = x + r * x_stride;
            float mean = it->centred ? sum_around(row, width, 0, 0) / width : 0;
            of[r - first].mean = mean;
            of[r - first].factor = 1.0f / sqrtf(sum_around(row, width, mean, 1) / width + (float)it->epsilon);
        }
        for (int64_t r = first; r < end; r++) {
            const float *row = x + r * x_stride, mean = of[r - first].mean, factor = of[r - first].factor;
            float *to = out + r * stride;
            uint16_t *short_to = shorts ? shorts + r * stride : 0;
            int64_t i = 0;
            for (; i + LANES <= width; i += LANES) {
                vec v = (*(const vec *)(row + i) - mean) * factor;
                if (weight) v *= *(const vec *)(weight + i);
                if (bias) v += *(const vec *)(bias + i);
                put(it->short_floats ? shortened(v) : v, to + i, shorts ? short_to + i : 0, LANES);
            }
            if (i == width) continue;
            vec v = (last_channels(row + i, width - i) - mean) * factor;
            if (weight) v *= last_channels(weight + i, width - i);
            if (bias) v += last_channels(bias + i, width - i);
            put(it->short_floats ? shortened(v) : v, to + i, shorts ? short_to + i : 0, width - i);
        }
    }
}

/* The sums of `rows` rows and `count` outputs of a map, with bias, activation and `more` added to them, to its results from
   row `row` and output `from` on. */
static void finish(const Instruction *it, float *sums, float *out, const float *more, int64_t row, int64_t rows,
                   int64_t from, int64_t count) {
    int64_t s = it->short_floats, n = it->width, stride = count;
    out += row * it->out.stride + from;
    if (more) more += row * it->y.stride + from;
    if (from + count <= n && !it->bias && (it->activation < 0 || it->activation == RELU)) { /* the usual case */
        for (int64_t i = 0; i < rows; i++, out += it->out.stride, sums += stride, more += more ? it->y.stride : 0)
            for (int64_t j = 0; j < count; j += LANES) {
                vec v = *(const vec *)(sums + j);
                if (s) v = shortened(v);
                if (it->activation == RELU) v = (vec)((bits)v & ~(bits)(v < 0));
                if (more) v += *(const vec *)(more + j);
                if (more && s) v = shortened(v);
                *(vec *)(out + j) = v;
            }
        return;
    }
    if (count > n - from) count = n - from;
    for (int64_t i = 0; i < rows; i++, out += it->out.stride, sums += stride, more += more ? it->y.stride : 0) {
        if (it->bias) add_bias(sums, it->bias, from, count, s);
        if (s) round_all(sums, count);
        if (it->activation >= 0) {
            activate_all(sums, sums, count, it->activation);
            if (s) round_all(sums, count);
        }
        if (more) {
            add_all(sums, more, count);
            if (s) round_all(sums, count);
        }
        memcpy(out, sums, count * sizeof(float));
    }
}

/* x W^T, with bias, activation and `more` added to it: the blocks of outputs that are this thread's. */
static void linear(const Instruction *it, const float *x, int64_t x_stride, float *out, const float *more,
                   int64_t rows, float *scratch, int thread, int threads) {
    int64_t s = it->short_floats, k = it->inner, even = inputs_of(it), n = it->width, blocks = (n + BLOCK - 1) / BLOCK;
    int64_t first = blocks * thread / threads, end = blocks * (thread + 1) / threads;
    const char *numbers = (const char *)x;
    int64_t size = s && SHORT_STEP == 2 && !it->level_bits ? 2 : 4, stride = x_stride;
    float sums[2][MOST_TILED * BLOCK] __attribute__((aligned(BYTES)));
    if (first == end) return;
    if (it->normed || size == 2 || even > k) { /* as the products read it; each thread for itself, which is cheaper than to wait */
        if (it->normed) norm_rows(it, x, x_stride, scratch, size == 2 ? (uint16_t *)scratch : 0, even, k, rows);
        else for (int64_t r = 0; r < rows; r++)
            if (size == 2) take_short(x + r * x_stride, (uint16_t *)scratch + r * even, k);
            else memcpy(scratch + r * even, x + r * x_stride, k * sizeof(float));
        if (even > k)
            for (int64_t r = 0; r < rows; r++) memset((char *)scratch + (r * even + k) * size, 0, (even - k) * size);
        numbers = (const char *)scratch, stride = even;
    }
    const int is_tiled = s && has_tiles && !it->level_bits;
    const int64_t few = at_once(rows, it->level_bits ? MOST_LEVEL_ROWS : is_tiled ? MOST_TILED : MOST_ROWS);
    const int64_t parts = (rows + few - 1) / few, tile = is_tiled || it->level_bits ? 1 : BLOCKS_OF[s != 0][few - 1];
    struct { int64_t row, rows, from, count; } last = {0}; /* whose sums are finished while the next ones' weights come */
    int turn = 0;
    for (int64_t b = first, taken; b < end; b += taken) {
        const char *weight = (const char *)it->weight + b * block_bytes(it);
        taken = end - b >= tile ? tile : 1;
        for (int64_t part = 0; part < parts; part++, turn ^= 1) {
            int64_t r = rows * part / parts, some = rows * (part + 1) / parts - r;
            if (it->level_bits) {
                LEVELS[it->level_bits == 4][some - 1](numbers + r * stride * size, stride, weight, even, sums[turn]);
            } else if (is_tiled) { /* all parts have the same shape: the last one repeats rows of the one before */
                r = rows - few * part < few ? rows - few : few * part, some = few;
                tiled((const uint16_t *)numbers + r * stride, stride, weight, even, sums[turn], few);
            } else (taken > 1 ? TILE : ONE_BLOCK)[s != 0][some - 1](numbers + r * stride * size, stride, weight, even, sums[turn]);
            finish(it, sums[turn ^ 1], out, more, last.row, last.rows, last.from, last.count);
            last.row = r, last.rows = some, last.from = b * BLOCK, last.count = taken * BLOCK;
        }
    }
    finish(it, sums[turn ^ 1], out, more, last.row, last.rows, last.from, last.count);
}

/* One row of a query head: what it asks for, and of each slot that it sees, in order, the weight; of those in a block that
   its tile does not see as a whole, the number too. */
typedef struct { const float *query, *added; float *weights, *out; int32_t *seen; int64_t count, at; } Asking;

/* A tile has up to MOST_ASKING rows that read the same keys and values, by blocks of SLOTS. Two or four rows share each load
   of a key or a value, and the others find NEAR_SLOTS of them in the cache nearby. */
enum { SLOTS = 16, NEAR_SLOTS = 64, MOST_ASKING = 8 };
#define INLINED static inline __attribute__((always_inline)) void /* with constants for the sizes of a tile */
#if defined(__AVX512F__) || defined(__aarch64__) /* 32 registers */
enum { OF_ONE = 8, OF_TWO = 8, OF_FOUR = 4, MOST_SUMS = 16 }; /* keys, or vectors of a value, that so many rows read at once */
#else
enum { OF_ONE = 8, OF_TWO = 4, OF_FOUR = 2, MOST_SUMS = 8 };
#endif

/* To the weights of `rows` rows from their place `at` on: the products of the queries [D] with `count` keys [D], `stride`
   floats from slot to slot, times `scale`. The keys are those in the slots `seen`, or the first ones. The sums of a
   product's lanes are added up for all products with `some` keys at once; a product is the same in any company. */
INLINED scores(const int rows, const int some, const Asking *of, const float *restrict keys, int64_t stride,
               const int32_t *seen, int64_t count, int64_t d, float scale) {
    for (int64_t c = 0; c < count; c += some) {
        vec sum[MOST_SUMS];
        const float *key[MOST_SUMS];
        int64_t i = 0, left = count - c < some ? count - c : some;
        UNROLLED for (int k = 0; k < some; k++) {
            int64_t at = c + (k < left ? k : 0);
            key[k] = keys + (seen ? seen[at] : at) * stride;
        }
        UNROLLED for (int k = 0; k < rows * some; k++) sum[k] = (vec){0};
        for (; i + LANES <= d; i += LANES)
            UNROLLED for (int k = 0; k < some; k++) {
                vec read = *(const vec *)(key[k] + i);
                UNROLLED for (int r = 0; r < rows; r++) sum[r * some + k] += *(const vec *)(of[r].query + i) * read;
            }
        if (i < d)
            UNROLLED for (int k = 0; k < some; k++) {
                vec read = last_channels(key[k] + i, d - i);
                UNROLLED for (int r = 0; r < rows; r++) sum[r * some + k] += last_channels(of[r].query + i, d - i) * read;
            }
        UNROLLED for (int lanes = LANES, n = rows * some; lanes > 1; lanes /= 2, n = (n + 1) / 2)
            UNROLLED for (int k = 0; k < n; k += 2) sum[k / 2] = of_neighbours(sum[k], sum[k + 1 < n ? k + 1 : k]);
        float one[MOST_SUMS];
        memcpy(one, sum, rows * some * sizeof(float));
        UNROLLED for (int r = 0; r < rows; r++) {
            float *out = of[r].weights + of[r].at + c;
            if (left == some) UNROLLED for (int k = 0; k < some; k++) out[k] += one[r * some + k] * scale;
            else for (int64_t k = 0; k < left; k++) out[k] += one[r * some + k] * scale;
        }
    }
}

/* To the results of `rows` rows, from channel i on: `count` values [D] by their weights from place `at` on. */
INLINED mix_some(const int rows, const int parts, const Asking *to, const float *restrict value, int64_t stride,
                 const int32_t *seen, int64_t count, int64_t i) {
    vec sum[MOST_SUMS];
    const float *weights[MOST_SUMS];
    UNROLLED for (int r = 0; r < rows; r++) {
        weights[r] = to[r].weights + to[r].at;
        UNROLLED for (int j = 0; j < parts; j++) sum[r * parts + j] = *(vec *)(to[r].out + i + j * LANES);
    }
    for (int64_t c = 0; c < count; c++) {
        const float *from = value + (seen ? seen[c] : c) * stride + i;
        UNROLLED for (int j = 0; j < parts; j++) {
            vec read = *(const vec *)(from + j * LANES);
            UNROLLED for (int r = 0; r < rows; r++) sum[r * parts + j] += weights[r][c] * read;
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int j = 0; j < parts; j++) *(vec *)(to[r].out + i + j * LANES) = sum[r * parts + j];
}

INLINED mix(const int rows, const int most, const Asking *to, const float *restrict value, int64_t stride,
            const int32_t *seen, int64_t count, int64_t d) {
    int64_t i = 0;
    for (; i + most * LANES <= d; i += most * LANES) mix_some(rows, most, to, value, stride, seen, count, i);
    if (most > 4) for (; i + 4 * LANES <= d; i += 4 * LANES) mix_some(rows, 4, to, value, stride, seen, count, i);
    for (; i + 2 * LANES <= d; i += 2 * LANES) mix_some(rows, 2, to, value, stride, seen, count, i);
    for (; i + LANES <= d; i += LANES) mix_some(rows, 1, to, value, stride, seen, count, i);
    if (i < d)
        for (int r = 0; r < rows; r++) {
            vec sum = last_channels(to[r].out + i, d - i);
            for (int64_t c = 0; c < count; c++)
                sum += to[r].weights[to[r].at + c] * last_channels(value + (seen ? seen[c] : c) * stride + i, d - i);
            memcpy(to[r].out + i, &sum, (d - i) * sizeof(float));
        }
}

/* How the rows of a tile see a block: each its own slots of it, all the same, or all of it as a whole. */
enum { OWN, SAME, WHOLE };

/* The slots that each row of a tile sees, with what is added to their scores, and to `sight` how they see each block. Rows
   with one bias see the same. */
static void gather(Asking *rows, int64_t n, int64_t slots, char *sight) {
    int is_one = 1;
    for (int64_t r = 1; r < n; r++) is_one &= rows[r].added == rows[0].added;
    for (int64_t c = 0; c < slots; c += SLOTS) { /* most often all of a block is visible, or nothing */
        int64_t end = c + SLOTS < slots ? c + SLOTS : slots, most = 0, least = SLOTS;
        for (Asking *row = rows; row < rows + n; row++) {
            int visible = end - c;
            if (row->added && visible == SLOTS) {
#ifdef __AVX512F__
                visible = __builtin_popcount(_mm512_cmp_ps_mask(_mm512_loadu_ps(row->added + c), _mm512_set1_ps(-1e30f), _CMP_GE_OQ));
#else
                visible = 0;
                for (int64_t i = 0; i < SLOTS; i++) visible += row->added[c + i] >= -1e30f;
#endif
            } else if (row->added) for (int64_t i = c; i < end; i++) visible -= !(row->added[i] >= -1e30f);
            most = visible > most ? visible : most, least = visible < least ? visible : least;
        }
        sight[c / SLOTS] = least == end - c ? WHOLE : is_one ? SAME : OWN;
        if (most) for (Asking *row = rows; row < rows + n; row++) {
            row->seen[row->count] = c;
            if (least == end - c) {
                if (!row->added) memset(row->weights + row->count, 0, SLOTS * sizeof(float)); /* there is room behind */
                else if (least == SLOTS) memcpy(row->weights + row->count, row->added + c, SLOTS * sizeof(float)); /* no call */
                else memcpy(row->weights + row->count, row->added + c, least * sizeof(float));
                row->count += least;
            } else for (int64_t i = c; i < end; i++) {
                row->seen[row->count] = i, row->weights[row->count] = row->added ? row->added[i] : 0;
                row->count += !row->added || row->added[i] >= -1e30f;
            }
        }
    }
}

/* What rows that see the same read, up to four rows at a time. */
INLINED read_same(Asking *rows, int64_t n, const float *read, int64_t stride, const int32_t *seen, int64_t count, int64_t d,
                  float scale, const int is_mix) {
    int64_t r = 0;
    for (; r + 4 <= n; r += 4)
        if (is_mix) mix(4, OF_FOUR, rows + r, read, stride, seen, count, d);
        else scores(4, OF_FOUR, rows + r, read, stride, seen, count, d, scale);
    for (; r + 2 <= n; r += 2)
        if (is_mix) mix(2, OF_TWO, rows + r, read, stride, seen, count, d);
        else scores(2, OF_TWO, rows + r, read, stride, seen, count, d, scale);
    for (; r < n; r++)
        if (is_mix) mix(1, OF_ONE, rows + r, read, stride, seen, count, d);
        else scores(1, OF_ONE, rows + r, read, stride, seen, count, d, scale);
    for (r = 0; r < n; r++) rows[r].at += count;
}

/* What a tile reads of its slots, keys' scores or values, in the order of the slots. */
INLINED read_slots(Asking *rows, int64_t n, int64_t slots, const char *sight, const float *from, int64_t stride,
                   int64_t d, float scale, const int is_mix) {
    for (int64_t r = 0; r < n; r++) rows[r].at = 0;
    for (int64_t c = 0, end; c < slots; c = end) {
        int how = sight[c / SLOTS];
        for (end = c; end < slots && sight[end / SLOTS] == how && !(how == WHOLE && n > 1 && end - c == NEAR_SLOTS);) end += SLOTS;
        if (end > slots) end = slots;
        if (how == WHOLE) {
            read_same(rows, n, from + c * stride, stride, 0, end - c, d, scale, is_mix);
            continue;
        }
        for (int64_t r = 0, some = how == SAME ? n : 1; r < n; r += some) {
            int64_t at = rows[r].at, count = end < slots ? 0 : rows[r].count - at;
            if (end < slots) while (at + count < rows[r].count && rows[r].seen[at + count] < end) count++;
            read_same(rows + r, some, from, stride, rows[r].seen + at, count, d, scale, is_mix);
        }
    }
}

/* What consecutive rows of a step read from outside: tensors' data, and numbers of slots, texts, heads and rows. Its rows
   are the new tokens of one text after another's, as many of each. The tensors numbered `moved` depend on where these
   tokens are in their text; before a step their addresses are taken from `placed`. */
typedef struct {
    void **outside; const int64_t *sizes; int64_t texts, rows;
    const int64_t *moved; void *const *placed; int64_t moved_count;
    int64_t ids, results; /* which of the tensors are the new tokens and their logits, where the caller says */
} Part;

/* A program and what one call of it reads: sequences of their own lengths and buffers are a part each. */
typedef struct { const Instruction *program; int64_t count; const Part *parts; int64_t part_count, rows; } Step;

/* For each `part`, whose first row is number `first_row`. */
#define EACH_PART(step)                                                                                                \
    int64_t first_row = 0;                                                                                             \
    for (const Part *part = (step)->parts; part < (step)->parts + (step)->part_count; first_row += part->rows, part++)

/* Scores become weights, which are not divided by their sum; returns that, with the weight of a sink if there is one. There
   is room for a vector behind the last score. */
static inline float weigh(float *v, int64_t count, const float *sink) {
    vec most = (vec){0} - INFINITY, total = {0};
    *(vec *)(v + count) = most;
    for (int64_t c = 0; c < count; c += LANES) most = larger(most, *(const vec *)(v + c));
    float highest = most_of_lanes(most);
    if (sink && *sink > highest) highest = *sink;
    for (int64_t c = 0; c < count; c += LANES) total += *(vec *)(v + c) = exp_below(*(const vec *)(v + c) - highest);
    return sum_of_lanes(total) + (sink ? exp_below((vec){0} + (*sink - highest))[0] : 0);
}

/* Softmax attention of the query heads' rows, over the slots that the bias leaves visible. Those are summed in order, as if
   they were next to each other, so that a sum does not depend on the slots between them, nor on the other rows of its
   tile: a path of a tree is summed as a chain is, and a text among others as it is alone. Each text has its own keys,
   values and, with more than one at `bias_texts`, bias. Keys and values lie in caches, or are those of the text's rows. */
static void attend(const Instruction *it, const Step *step, const float *q, const float *keys, const float *values,
                   float *out, float *scratch, int thread, int threads) {
    int64_t d = it->inner, group = it->heads / it->key_heads, all = step->rows * group, units = it->key_heads * all;
    int64_t last = units * (thread + 1) / threads, n;
    for (int64_t unit = units * thread / threads; unit < last; unit += n) { /* by key head, text, query head and row */
        const Part *part = step->parts;
        int64_t key_head = unit / all, at = unit % all, first = 0; /* row of the part */
        for (; at >= part->rows * group; part++) at -= part->rows * group, first += part->rows;
        const int64_t *sizes = part->sizes;
        int64_t tokens = part->rows / part->texts, text = at / (tokens * group), is_cached = it->slots >= 0;
        int64_t slots = is_cached ? sizes[it->slots] : tokens, room = slots + SLOTS;
        at -= text * tokens * group;
        n = tokens * group - at < last - unit ? tokens * group - at : last - unit;
        n = at_once(n, MOST_ASKING);
        Asking rows[MOST_ASKING];
        char *sight = (char *)(scratch + 2 * n * room);
        for (int64_t i = 0; i < n; i++) {
            int64_t h = key_head * group + (at + i) / tokens, token = (at + i) % tokens, r = first + text * tokens + token;
            rows[i] = (Asking){.query = q + r * it->x.stride + h * d, .out = out + r * it->out.stride + h * d};
            rows[i].weights = scratch + i * room, rows[i].seen = (int32_t *)(scratch + (n + i) * room);
            if (it->outside[2] < 0) continue;
            /* the bias' axes for texts, heads and rows may each have one entry for all */
            int64_t head = text * (sizes[it->bias_texts] > 1), row = token * (sizes[it->bias_rows] > 1);
            head = sizes[it->bias_heads] > 1 ? head * it->heads + h : head;
            rows[i].added = (const float *)part->outside[it->outside[2]] + (head * sizes[it->bias_rows] + row) * slots;
        }
        gather(rows, n, slots, sight);
        const float *key = keys + (first + text * tokens) * it->y.stride + key_head * d;
        const float *value = values + (first + text * tokens) * it->z.stride + key_head * d;
        int64_t key_stride = it->y.stride, value_stride = it->z.stride;
        if (is_cached) {
            int64_t from = (text * it->key_heads + key_head) * slots * d;
            key = (const float *)part->outside[it->outside[0]] + from;
            value = (const float *)part->outside[it->outside[1]] + from, key_stride = value_stride = d;
        }
        read_slots(rows, n, slots, sight, key, key_stride, d, (float)it->scale, 0);
        float totals[MOST_ASKING] = {0};
        for (int64_t i = 0; i < n; i++) {
            /* a sink takes part in the softmax, and mixes nothing in */
            const float *sink = it->bias ? (const float *)it->bias + key_head * group + (at + i) / tokens : 0;
            totals[i] = weigh(rows[i].weights, rows[i].count, sink);
            memset(rows[i].out, 0, d * sizeof(float));
        }
        read_slots(rows, n, slots, sight, value, value_stride, d, 1, 1);
        for (int64_t i = 0; i < n; i++) {
            float factor = 1 / totals[i];
            for (int64_t j = 0; j < d; j++) rows[i].out[j] *= factor;
            if (it->short_floats) round_all(rows[i].out, d);
        }
    }
}

/* Attention over caches, block by block of RANKS slots: for each block the keys and values are read once for all rows of
   a tile, which are the query heads of a key head for each of some tokens. The slots that a row sees count by their rank,
   from 0 on, and blocks are of ranks, so that the sums of a row depend neither on the slots between them nor on other rows:
   a path of a tree is summed as a chain is. Within a block keys lie transposed, a slot a lane, and a score is summed
   channel by channel; values are summed slot by slot, in bf16 two at a time. The blocks' results are added up in order,
   whichever thread has read them. */
enum { RANKS = 128, MOST_TILED_ROWS = 96, VALUES_AT_ONCE = 64, KEYS_AT_ONCE = 4 * LANES };
#ifdef __AVX512BF16__
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

/* Which slots a row sees: `count` of them, the first `whole` next to each other from slot `first` on. The visible slots up
   to `slot` have the ranks up to `rank`. */
typedef struct { const float *added; int64_t first, whole, count, slot, rank; } Sight;

/* Bit i: whether slot c + i is visible, of up to SLOTS slots. */
static inline uint32_t visible_of(const float *added, int64_t c, int64_t n) {
#ifdef __AVX512F__
    if (n == SLOTS) return _mm512_cmp_ps_mask(_mm512_loadu_ps(added + c), _mm512_set1_ps(-1e30f), _CMP_GE_OQ);
#endif
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) found |= (uint32_t)(added[c + i] >= -1e30f) << i;
    return found;
}

static void look(Sight *of, int64_t slots) {
    *of = (Sight){.added = of->added, .whole = of->added ? -1 : slots, .count = of->added ? 0 : slots};
    for (int64_t c = 0, is_begun = 0, is_gap = 0; of->added && c < slots; c += SLOTS) {
        int64_t n = slots - c < SLOTS ? slots - c : SLOTS;
        uint32_t visible = visible_of(of->added, c, n);
        if (visible == (1u << n) - 1 && is_begun && !is_gap) of->count += n; /* most often */
        else if (!visible) is_gap = is_begun;
        else for (int64_t i = 0; i < n; i++) {
            if (!(visible >> i & 1)) { is_gap = is_begun; continue; }
            if (!is_begun) of->first = c + i, is_begun = 1;
            if (is_gap && of->whole < 0) of->whole = of->count;
            of->count++;
        }
    }
    if (of->whole < 0) of->whole = of->count;
    of->slot = of->first + of->whole, of->rank = of->whole;
}

/* The slots of `n` ranks from `from` on. */
static void slots_of(Sight *of, int64_t from, int64_t n, int32_t *slots) {
    int64_t i = 0;
    for (; i < n && from + i < of->whole; i++) slots[i] = of->first + from + i;
    if (i == n) return;
    if (of->rank > from + i) of->slot = of->first + of->whole, of->rank = of->whole;
    for (; i < n; of->slot++)
        if (of->added[of->slot] >= -1e30f && of->rank++ == from + i) slots[i++] = of->slot;
}

/* Of `a` and `b` in turn, the first and the last halves. */
static inline Neighbours zipped(vec a, vec b) {
#if BYTES == 64
    const ints first = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
#elif BYTES == 32
    const ints first = {0, 8, 1, 9, 2, 10, 3, 11};
#else
    const ints first = {0, 4, 1, 5};
#endif
#ifdef __clang__
    Neighbours of;
#if BYTES == 64
    of.first = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    of.second = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif BYTES == 32
    of.first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    of.second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    of.first = __builtin_shufflevector(a, b, 0, 4, 1, 5), of.second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
    (void)first;
    return of;
#else
    return (Neighbours){__builtin_shuffle(a, b, first), __builtin_shuffle(a, b, first + LANES / 2)};
#endif
}

/* `count` numbers of a row as a vector, bf16 ones widened; zeros behind them. */
static inline vec some_numbers(const void *row, int64_t from, int64_t count, const int is_short) {
    if (!is_short) return count < LANES ? last_channels((const float *)row + from, count) : *(const vec *)((const float *)row + from);
    halves h = {0};
    const uint16_t *numbers = (const uint16_t *)row + from;
    if (count < LANES) memcpy(&h, numbers, count * sizeof(uint16_t));
    else h = *(const halves *)numbers;
    return (vec)(__builtin_convertvector(h, bits) << 16);
}

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

static inline void fetch_row(const char *from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(from + at);
}

/* The keys in up to KEYS_AT_ONCE of the slots `seen`, LANES of them at a time, word by word. What is read next, the values
   in these slots, is fetched meanwhile. */
INLINED transpose(const void *keys, const void *next, int64_t stride, const int32_t *seen, int64_t n, int64_t d, float *out,
                  const int is_short) {
    int64_t words = words_of(d, is_short), size = is_short ? 2 : 4;
    for (int64_t k = 0; k < n; k += LANES, out += words * LANES) {
        for (int64_t i = k; i < k + LANES && i < n; i++) fetch_row((const char *)next + seen[i] * stride * size, d * size);
        for (int64_t w = 0; w < words; w += LANES) {
            vec a[LANES], b[LANES];
            UNROLLED for (int i = 0; i < LANES; i++) {
                int64_t slot = seen[k + i < n ? k + i : n - 1];
                a[i] = some_words((const char *)keys + slot * stride * size, w, d, is_short);
            }
            UNROLLED for (int turn = 1; turn < LANES; turn *= 2) {
                UNROLLED for (int i = 0; i < LANES / 2; i++) {
                    Neighbours of = zipped(a[i], a[i + LANES / 2]);
                    b[2 * i] = of.first, b[2 * i + 1] = of.second;
                }
                UNROLLED for (int i = 0; i < LANES; i++) a[i] = b[i];
            }
            int64_t left = words - w < LANES ? words - w : LANES;
            if (left == LANES) UNROLLED for (int i = 0; i < LANES; i++) *(vec *)(out + (w + i) * LANES) = a[i];
            else for (int64_t i = 0; i < left; i++) *(vec *)(out + (w + i) * LANES) = a[i];
        }
    }
}

static inline vec add_product(vec sum, vec many, float one, const int is_short) {
#ifdef __AVX512BF16__
    if (is_short) return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)many, (__m512bh)_mm512_set1_ps(one));
#endif
    return sum + many * one;
}

/* The products of `rows` queries with `groups` times LANES transposed keys, to rows of RANKS scores. */
INLINED dots(const int rows, const int groups, const float *query, int64_t words, const float *keys, float *out, const int is_short) {
    vec sum[MOST_DOTTED * 2];
    UNROLLED for (int i = 0; i < rows * groups; i++) sum[i] = (vec){0};
    for (int64_t w = 0; w < words; w++)
        UNROLLED for (int g = 0; g < groups; g++) {
            vec key = *(const vec *)(keys + (g * words + w) * LANES);
            UNROLLED for (int r = 0; r < rows; r++)
                sum[r * groups + g] = add_product(sum[r * groups + g], key, query[r * words + w], is_short);
        }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int g = 0; g < groups; g++) *(vec *)(out + r * RANKS + g * LANES) = sum[r * groups + g];
}

/* To `out` of `rows` rows, from channel c on: `n` values by their weights; `n` counts pairs where two are added at once. */
INLINED mix_block(const int rows, const int parts, const float *weights, const float *values, int64_t width, int64_t n,
                  float *out, const int is_short) {
    vec sum[MOST_MIXED * 4];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int j = 0; j < parts; j++) sum[r * parts + j] = *(const vec *)(out + r * width + j * LANES);
    for (int64_t k = 0; k < n; k++)
        UNROLLED for (int j = 0; j < parts; j++) {
            vec read = *(const vec *)(values + k * width + j * LANES);
            UNROLLED for (int r = 0; r < rows; r++)
                sum[r * parts + j] = add_product(sum[r * parts + j], read, weights[r * RANKS + k], is_short);
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
#ifdef __AVX512BF16__
KERNELS_OF(pairs, 1)
#else
#define dots_pairs dots_wide
#define mix_pairs mix_wide
#endif

/* The values in the slots `seen` as they are mixed: of each two slots, channel by channel, or each for itself. Returns how
   many there are. What is read next, the keys RANKS slots further on, is fetched meanwhile. */
static int64_t lay_values(const void *values, const void *next, int64_t stride, const int32_t *seen, int64_t n, int64_t d, float *out, int64_t is_short) {
    int64_t width = filled_channels(d), size = is_short ? 2 : 4, c;
    for (int64_t k = 0; k < n; k++) fetch_row((const char *)next + (seen[k] + RANKS) * stride * size, d * size);
    if (!(is_short && IN_PAIRS)) {
        for (int64_t k = 0; k < n; k++)
            for (c = 0; c < d; c += LANES) {
                const void *row = (const char *)values + seen[k] * stride * size;
                *(vec *)(out + k * width + c) = some_numbers(row, c, d - c < LANES ? d - c : LANES, is_short);
            }
        return n;
    }
    for (int64_t k = 0; k < n; k += 2, out += width) {
        const uint16_t *a = (const uint16_t *)values + seen[k] * stride, *b = k + 1 < n ? (const uint16_t *)values + seen[k + 1] * stride : 0;
        c = 0;
#ifdef __AVX512BF16__
        static const uint16_t mixed[2][2 * LANES] = {
            {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
            {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
        for (; c + 2 * LANES <= d; c += 2 * LANES) {
            __m512i first = _mm512_loadu_si512(a + c), second = b ? _mm512_loadu_si512(b + c) : _mm512_setzero_si512();
            _mm512_storeu_si512(out + c, _mm512_permutex2var_epi16(first, _mm512_loadu_si512(mixed[0]), second));
            _mm512_storeu_si512(out + c + LANES, _mm512_permutex2var_epi16(first, _mm512_loadu_si512(mixed[1]), second));
        }
#endif
        for (; c < d; c += LANES) {
            int64_t left = d - c < LANES ? d - c : LANES;
            bits first = (bits)some_numbers(a, c, left, 1), second = b ? (bits)some_numbers(b, c, left, 1) : (bits){0};
            *(bits *)(out + c) = first >> 16 | second;
        }
    }
    return (n + 1) / 2;
}

/* Scores to weights, not divided by their sum, as they are mixed: times `scale`, with what is added to them; of the `n` first
   ones, and zeros up to `room`. Returns their highest score and their sum. */
typedef struct { float highest, sum; } Weighed;
static inline Weighed weigh_block(float *v, int64_t n, int64_t room, float scale, const float *added, const int32_t *seen, int is_row,
                                  int64_t is_short) {
    vec most = (vec){0} - INFINITY, total = {0};
    float some[RANKS] __attribute__((aligned(BYTES)));
    if (added && is_row) added += seen[0];
    else if (added) {
        for (int64_t k = 0; k < n; k++) some[k] = added[seen[k]];
        added = some;
    }
    int64_t k = 0, end = (n + LANES - 1) / LANES * LANES;
    for (; k + LANES <= n; k += LANES) {
        vec score = *(vec *)(v + k) * scale;
        if (added) score += *(const vec *)(added + k);
        most = larger(most, *(vec *)(v + k) = score);
    }
    if (k < n) {
        vec score = *(vec *)(v + k) * scale;
        if (added) score += last_channels(added + k, n - k);
        float of[LANES];
        memcpy(of, &score, sizeof of);
        for (int64_t i = n - k; i < LANES; i++) of[i] = -INFINITY;
        memcpy(&score, of, sizeof of);
        most = larger(most, *(vec *)(v + k) = score);
    }
    float highest = most_of_lanes(most);
#ifdef __AVX512BF16__
    if (is_short) {
        uint16_t *shorts = (uint16_t *)v; /* over scores that have been read */
        for (k = 0; k < end; k += LANES) {
            vec weight = exp_below(*(const vec *)(v + k) - highest);
            total += weight;
            _mm256_storeu_si256((__m256i *)(shorts + k), (__m256i)_mm512_cvtneps_pbh((__m512)weight));
        }
        if (room > end) memset(shorts + end, 0, (room - end) * sizeof(uint16_t));
        return (Weighed){highest, sum_of_lanes(total)};
    }
#endif
    for (k = 0; k < end; k += LANES) total += *(vec *)(v + k) = exp_below(*(const vec *)(v + k) - highest);
    if (room > end) memset(v + end, 0, (room - end) * sizeof(float));
    return (Weighed){highest, sum_of_lanes(total)};
}

/* A row's sums so far, and the results of its next block added to them. */
static __attribute__((noinline)) void add_block(float *highest, float *sum, float *out, Weighed of, const float *mixed, int64_t width) {
    float most = of.highest > *highest ? of.highest : *highest;
    vec factors = (vec){0} - INFINITY;
    factors[0] = *highest - most, factors[1] = of.highest - most;
    factors = exp_below(factors);
    float before = factors[0], now = factors[1];
    for (int64_t c = 0; c < width; c += LANES) *(vec *)(out + c) = *(vec *)(out + c) * before + *(const vec *)(mixed + c) * now;
    *sum = *sum * before + of.sum * now, *highest = most;
}

/* Rows of one key head that read the same cache, and the room to read it. */
typedef struct {
    const Instruction *it; const void *keys, *values;
    int64_t rows, group; /* query heads of a token come one after another */
    float *query, *scores, *turned, *laid, *mixed, *out, *highest, *sum;
    Weighed *of; Sight *sights;
} Tile;

/* Floats that `attend_blocks` needs in a thread. */
int64_t attend_room(int64_t d) {
    int64_t width = filled_channels(d);
    return MOST_TILED_ROWS * (RANKS + 3 * width + 4 + (int64_t)(sizeof(Sight) / sizeof(float))) + (KEYS_AT_ONCE + VALUES_AT_ONCE) * width + 16 * LANES;
}

/* The results of block `b` for some of a tile's rows, all of which see the slots of their ranks in it in `seen`. */
static void read_block(Tile *tile, int64_t first, int64_t rows, int64_t b, const int32_t *seen, int64_t n, int is_row) {
    const Instruction *it = tile->it;
    int64_t d = it->inner, s = it->short_cache, words = words_of(d, s), width = filled_channels(d), counts = 0;
    for (int64_t k = 0; k < n; k += KEYS_AT_ONCE) {
        int64_t some = n - k < KEYS_AT_ONCE ? n - k : KEYS_AT_ONCE, few;
        if (s) transpose(tile->keys, tile->values, d, seen + k, some, d, tile->turned, 1);
        else transpose(tile->keys, tile->values, d, seen + k, some, d, tile->turned, 0);
        for (int64_t r = first; r < first + rows; r += few) {
            few = first + rows - r < MOST_DOTTED ? first + rows - r : MOST_DOTTED;
            (s && IN_PAIRS ? dots_pairs : dots_wide)(few, (some + LANES - 1) / LANES, tile->query + r * words, words, tile->turned,
                                                     tile->scores + r * RANKS + k);
        }
    }
    for (int64_t r = first; r < first + rows; r++) {
        const Sight *sight = tile->sights + r;
        int64_t own = sight->count - b * RANKS < n ? sight->count - b * RANKS : n;
        tile->of[r] = (Weighed){-INFINITY, 0};
        memset(tile->mixed + r * width, 0, width * sizeof(float));
        if (own > 0) {
            tile->of[r] = weigh_block(tile->scores + r * RANKS, own, RANKS, (float)it->scale, sight->added, seen, is_row, s);
            counts = r + 1 - first;
        } else memset(tile->scores + r * RANKS, 0, RANKS * sizeof(float));
    }
    for (int64_t k = 0; k < n && counts; k += VALUES_AT_ONCE) {
        int64_t some = n - k < VALUES_AT_ONCE ? n - k : VALUES_AT_ONCE, few;
        int64_t laid = lay_values(tile->values, tile->keys, d, seen + k, some, d, tile->laid, s), at = s && IN_PAIRS ? k / 2 : k;
        for (int64_t r = first; r < first + counts; r += few) {
            few = first + counts - r < MOST_MIXED ? first + counts - r : MOST_MIXED;
            (s && IN_PAIRS ? mix_pairs : mix_wide)(few, tile->scores + r * RANKS + at, tile->laid, width, laid, tile->mixed + r * width);
        }
    }
}

/* Block `b` for all rows of a tile. */
static void read_ranks(Tile *tile, int64_t b) {
    int32_t seen[RANKS];
    int64_t from = b * RANKS, most = 0, is_one = 1;
    for (int64_t r = 0; r < tile->rows; r++) {
        const Sight *sight = tile->sights + r;
        int64_t end = sight->count < from + RANKS ? sight->count : from + RANKS;
        if (end <= from) continue;
        most = end - from > most ? end - from : most;
        is_one &= sight->whole >= end && sight->first == tile->sights[0].first;
    }
    if (is_one) {
        for (int64_t k = 0; k < most; k++) seen[k] = tile->sights[0].first + from + k;
        read_block(tile, 0, tile->rows, b, seen, most, 1);
    } else for (int64_t r = 0, some; r < tile->rows; r += some) { /* each token for itself */
        Sight *sight = tile->sights + r;
        for (some = 1; r + some < tile->rows && sight[some].added == sight->added;) some++;
        int64_t own = sight->count - from < RANKS ? sight->count - from : RANKS;
        if (own > 0) slots_of(sight, from, own, seen);
        read_block(tile, r, some, b, seen, own > 0 ? own : 0, sight->whole >= from + own);
    }
}

/* How attention over a cache is divided: rows of a text that read at once, and whether threads share a row's blocks. */
static inline int is_blocked(const Instruction *it) { return it->slots >= 0 && (it->short_cache || it->heads > it->key_heads); }
static inline int64_t heads_at_once(int64_t group) { return at_once(group, MOST_TILED_ROWS); }
static inline int64_t tokens_of_tile(int64_t tokens, int64_t group) {
    int64_t most = MOST_TILED_ROWS / heads_at_once(group);
    return at_once(tokens, most > 1 ? most : 1);
}
static int shares_blocks(const Instruction *it, const Step *step, int threads) {
    int64_t group = it->heads / it->key_heads;
    return threads > 1 && step->part_count == 1 && step->parts->texts == 1 && heads_at_once(group) == group
           && tokens_of_tile(step->rows, group) == step->rows;
}

/* Floats that threads share where they divide the blocks of `rows` tokens' attention over `slots` slots. */
int64_t shared_room(int64_t heads, int64_t key_heads, int64_t d, int64_t rows, int64_t slots) {
    int64_t group = heads / key_heads;
    if (heads_at_once(group) < group || tokens_of_tile(rows, group) < rows) return 0;
    return heads * rows * ((slots + RANKS - 1) / RANKS) * (filled_channels(d) + 2);
}

/* Begin a tile of `tokens` tokens from number `token` of a text on and `group` query heads from `head` on. */
static void begin_tile(Tile *tile, const Part *part, int64_t first_row, int64_t text, int64_t token, int64_t tokens, int64_t head,
                       int64_t group, const float *q) {
    const Instruction *it = tile->it;
    int64_t d = it->inner, s = it->short_cache, slots = part->sizes[it->slots], of_text = part->rows / part->texts;
    int64_t key_head = head / (it->heads / it->key_heads), words = words_of(d, s), width = filled_channels(d);
    int64_t from = (text * it->key_heads + key_head) * slots * d * (s ? 2 : 4);
    tile->keys = (const char *)part->outside[it->outside[0]] + from, tile->values = (const char *)part->outside[it->outside[1]] + from;
    tile->rows = tokens * group, tile->group = group;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < group; h++) {
            int64_t r = t * group + h, row = first_row + text * of_text + token + t;
            const float *query = q + row * it->x.stride + (head + h) * d;
            if (s && IN_PAIRS) {
                uint16_t *shorts = (uint16_t *)(tile->query + r * words);
                shorts[2 * words - 1] = 0, take_short(query, shorts, d);
            } else memcpy(tile->query + r * words, query, d * sizeof(float));
            memset(tile->out + r * width, 0, width * sizeof(float));
            /* a sink takes part in the softmax, and mixes nothing in */
            tile->highest[r] = it->bias ? ((const float *)it->bias)[head + h] : -INFINITY, tile->sum[r] = it->bias ? 1 : 0;
            tile->sights[r].added = 0;
            if (it->outside[2] >= 0) { /* the bias' axes for texts, heads and rows may each have one entry for all */
                const int64_t *sizes = part->sizes;
                int64_t of = text * (sizes[it->bias_texts] > 1), at = (token + t) * (sizes[it->bias_rows] > 1);
                of = sizes[it->bias_heads] > 1 ? of * it->heads + head + h : of;
                tile->sights[r].added = (const float *)part->outside[it->outside[2]] + (of * sizes[it->bias_rows] + at) * slots;
            }
            const Sight *before = r ? tile->sights + r - 1 : 0;
            if (before && before->added == tile->sights[r].added) tile->sights[r] = *before;
            else look(tile->sights + r, slots);
        }
}

static inline int64_t blocks_of(const Tile *tile) {
    int64_t most = 0;
    for (int64_t r = 0; r < tile->rows; r++) most = tile->sights[r].count > most ? tile->sights[r].count : most;
    return (most + RANKS - 1) / RANKS;
}

/* A row's sums to its result. */
static void put_row(const Instruction *it, const float *sums, float sum, float *out) {
    float factor = sum > 0 ? 1 / sum : 0;
    for (int64_t c = 0; c < it->inner; c++) out[c] = rounded(sums[c] * factor, it->short_floats);
}

static Tile tile_in(const Instruction *it, float *scratch) {
    int64_t width = filled_channels(it->inner);
    Tile tile = {.it = it, .query = scratch};
    tile.scores = tile.query + MOST_TILED_ROWS * width, tile.turned = tile.scores + MOST_TILED_ROWS * RANKS;
    tile.laid = tile.turned + KEYS_AT_ONCE * width, tile.mixed = tile.laid + VALUES_AT_ONCE * width;
    tile.out = tile.mixed + MOST_TILED_ROWS * width, tile.highest = tile.out + MOST_TILED_ROWS * width;
    tile.sum = tile.highest + MOST_TILED_ROWS, tile.of = (Weighed *)(tile.sum + MOST_TILED_ROWS);
    tile.sights = (Sight *)(tile.of + MOST_TILED_ROWS);
    return tile;
}

/* The part of attention that this thread reads: tiles as a whole, whose results it writes, or where threads share them
   blocks, whose results go to `shared`. */
static void attend_blocks(const Instruction *it, const Step *step, const float *q, float *out, float *scratch, float *shared,
                          int thread, int threads) {
    int64_t group = it->heads / it->key_heads, d = it->inner, width = filled_channels(d), number = 0;
    Tile tile = tile_in(it, scratch);
    if (shares_blocks(it, step, threads)) {
        begin_tile(&tile, step->parts, 0, 0, 0, step->rows, 0, group, q);
        int64_t blocks = blocks_of(&tile), all = blocks * it->key_heads, last = all * (thread + 1) / threads, head = 0;
        for (int64_t at = all * thread / threads; at < last; at++) {
            if (at / blocks != head) begin_tile(&tile, step->parts, 0, 0, 0, step->rows, (head = at / blocks) * group, group, q);
            read_ranks(&tile, at % blocks);
            float *to = shared + at * tile.rows * (width + 2);
            for (int64_t r = 0; r < tile.rows; r++, to += width + 2) {
                to[0] = tile.of[r].highest, to[1] = tile.of[r].sum;
                memcpy(to + 2, tile.mixed + r * width, width * sizeof(float));
            }
        }
        return;
    }
    EACH_PART(step) {
        int64_t tokens = part->rows / part->texts, at_a_time = tokens_of_tile(tokens, group), heads = heads_at_once(group);
        for (int64_t text = 0; text < part->texts; text++)
            for (int64_t token = 0; token < tokens; token += at_a_time)
                for (int64_t head = 0; head < it->heads; head = head + heads < (head / group + 1) * group ? head + heads : (head / group + 1) * group) {
                    if (number++ % threads != thread) continue;
                    int64_t left = (head / group + 1) * group - head, some = tokens - token < at_a_time ? tokens - token : at_a_time;
                    begin_tile(&tile, part, first_row, text, token, some, head, left < heads ? left : heads, q);
                    for (int64_t b = 0, blocks = blocks_of(&tile); b < blocks; b++) {
                        read_ranks(&tile, b);
                        for (int64_t r = 0; r < tile.rows; r++)
                            if (tile.of[r].highest > -INFINITY)
                                add_block(tile.highest + r, tile.sum + r, tile.out + r * width, tile.of[r], tile.mixed + r * width, width);
                    }
                    for (int64_t r = 0; r < tile.rows; r++) {
                        int64_t row = first_row + text * tokens + token + r / tile.group;
                        put_row(it, tile.out + r * width, tile.sum[r], out + row * it->out.stride + (head + r % tile.group) * d);
                    }
                }
    }
}

/* Where threads share blocks: add up their results, for the rows that are this thread's. */
static void add_blocks(const Instruction *it, const Step *step, const float *q, float *out, float *scratch, const float *shared,
                       int thread, int threads) {
    if (!shares_blocks(it, step, threads)) return;
    int64_t group = it->heads / it->key_heads, width = filled_channels(it->inner), all = it->heads * step->rows;
    Tile tile = tile_in(it, scratch);
    begin_tile(&tile, step->parts, 0, 0, 0, step->rows, 0, group, q);
    int64_t blocks = blocks_of(&tile);
    for (int64_t unit = all * thread / threads; unit < all * (thread + 1) / threads; unit++) {
        int64_t key_head = unit / tile.rows, r = unit % tile.rows, head = key_head * group + r % group;
        float highest = it->bias ? ((const float *)it->bias)[head] : -INFINITY, sum = it->bias ? 1 : 0;
        memset(tile.out, 0, width * sizeof(float));
        for (int64_t b = 0; b < blocks; b++) {
            const float *from = shared + ((key_head * blocks + b) * tile.rows + r) * (width + 2);
            if (from[0] > -INFINITY) add_block(&highest, &sum, tile.out, (Weighed){from[0], from[1]}, from + 2, width);
        }
        put_row(it, tile.out, sum, out + r / group * it->out.stride + head * it->inner);
    }
}

/* Where the threads of a call wait for each other, dozens of times a step: cheaper than OpenMP's own barrier. */
typedef struct { int arrived, turn; } Barrier;

static void wait_for_all(Barrier *barrier, int threads) {
    if (threads == 1) return;
    int turn = __atomic_load_n(&barrier->turn, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t waited = 0; __atomic_load_n(&barrier->turn, __ATOMIC_ACQUIRE) == turn; waited++) {
        if (waited >= 1 << 10) sched_yield(); /* some 50 us: another thread has lost its core, and may want this one */
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Fetch the first weights that this thread reads of the next linear map. */
static void fetch_next(const Instruction *it, const Instruction *end, int thread, int threads) {
    while (it < end && it->op != LINEAR) it++;
    if (it == end) return;
    int64_t blocks = (it->width + BLOCK - 1) / BLOCK, first = blocks * thread / threads;
    int64_t size = block_bytes(it);
    int64_t bytes = (blocks * (thread + 1) / threads - first) * size;
    fetch((const char *)it->weight + first * size, bytes < AT_FIRST ? bytes : AT_FIRST);
}

/* Set the addresses that depend on the place in the text. */
static void place_parts(const Step *step) {
    for (const Part *part = step->parts; part < step->parts + step->part_count; part++)
        for (int64_t i = 0; i < part->moved_count; i++) part->outside[part->moved[i]] = part->placed[i];
}

/* x y + pick(x) z of some columns, where y and z have a period: by columns whose picked ones follow each other, too. */
static __attribute__((noinline)) void rotate(const Instruction *it, const float *x, const float *y, const float *z, float *out,
                                             int64_t rows, int64_t first, int64_t end) {
    const int64_t *columns = it->weight;
    for (int64_t i = first, n; i < end; i += n) {
        int64_t j = i % it->period, is_negative = columns[i] < 0, from = is_negative ? ~columns[i] : columns[i];
        for (n = 1; i + n < end && j + n < it->period && columns[i + n] == columns[i] + (is_negative ? -n : n);) n++;
        for (int64_t r = 0; r < rows; r++) {
            const float *straight = x + r * it->x.stride + i, *turned = x + r * it->x.stride + from;
            const float *cosine = y + r * it->y.stride + j, *sine = z + r * it->z.stride + j;
            for (int64_t c = 0; c < n; c += LANES) {
                int64_t some = n - c < LANES ? n - c : LANES;
                bits other = (bits)some_numbers(turned, c, some, 0);
                if (is_negative) other ^= 0x80000000u;
                vec sum = some_numbers(straight, c, some, 0) * some_numbers(cosine, c, some, 0);
                vec more = (vec)other * some_numbers(sine, c, some, 0);
                if (it->short_floats) sum = shortened(sum), more = shortened(more);
                sum += more;
                put(it->short_floats ? shortened(sum) : sum, out + r * it->out.stride + i + c, 0, some);
            }
        }
    }
}

/* Sums or products of `count` numbers each. */
static void both(const float *x, const float *y, float *out, int64_t count, int64_t op, int64_t is_short) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t some = count - i < LANES ? count - i : LANES;
        vec a = some_numbers(x, i, some, 0), b = some_numbers(y, i, some, 0), v = op == ADD ? a + b : a * b;
        put(is_short ? shortened(v) : v, out + i, 0, some);
    }
}

static void run_step(const Step *step, float *arena, float *scratch, float *shared, Barrier *barrier, int thread, int threads) {
    int64_t rows = step->rows, is_tiled = has_tiles && step->program->short_floats;
    if (is_tiled) shape_tiles(rows);
    for (const Instruction *it = step->program; it < step->program + step->count; it++) {
        int64_t s = it->short_floats, width = it->width;
        float *out = arena + it->out.at * rows + it->out.column;
        const float *x = arena + it->x.at * rows + it->x.column, *y = arena + it->y.at * rows + it->y.column;
        const float *z = arena + it->z.at * rows + it->z.column;
        int64_t first = width * thread / threads, end = width * (thread + 1) / threads, stride = it->x.stride;
        switch (it->op) {
        case EMBED: case LOAD: { /* rows of a table, or of a tensor */
            EACH_PART(step)
                for (int64_t r = 0; r < part->rows; r++) {
                    const void *read = part->outside[it->outside[0]];
                    int64_t row = it->op == LOAD ? r : ((const int64_t *)read)[r];
                    const char *from = it->op == LOAD ? read : it->weight;
                    float *to = out + (first_row + r) * it->out.stride + first;
                    if (it->op == EMBED && (uint64_t)row >= (uint64_t)it->inner) { /* no row of the table: NaN, which is refused */
                        for (int64_t i = 0; i < end - first; i++) to[i] = NAN;
                        continue;
                    }
                    from += (row * width + first) * (s ? 2 : 4);
                    if (s) widen_all((const uint16_t *)from, to, end - first);
                    else memcpy(to, from, (end - first) * sizeof(float));
                }
            break;
        }
        case STORE: {
            EACH_PART(step)
                for (int64_t r = 0; r < part->rows; r++) {
                    const float *from = x + (first_row + r) * stride + first;
                    char *to = (char *)part->outside[it->outside[0]] + (r * width + first) * (s ? 2 : 4);
                    if (s) take_short(from, (uint16_t *)to, end - first);
                    else memcpy(to, from, (end - first) * sizeof(float));
                }
            break;
        }
        case NORM:
            for (int64_t u = rows * it->heads * thread / threads; u < rows * it->heads * (thread + 1) / threads; u++) {
                int64_t r = u / it->heads, at = u % it->heads * it->inner;
                norm_rows(it, x + r * stride + at, stride, out + r * it->out.stride + at, 0, it->out.stride, it->inner, 1);
            }
            break;
        case LINEAR:
            linear(it, x, stride, out, it->residual ? y : 0, rows, scratch, thread, threads);
            fetch_next(it + 1, step->program + step->count, thread, threads);
            break;
        case PICK: /* columns of x, and of y if there is one */
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = first; i < end; i++)
                    out[r * it->out.stride + i] = picked(x + r * stride, it->residual ? y + r * it->y.stride : 0,
                                                         ((const int64_t *)it->weight)[i], it->inner);
            break;
        case SPREAD: /* columns of x, each to its own place; minus infinity elsewhere */
            for (int64_t r = 0; r < rows; r++) {
                float *to = out + r * it->out.stride;
                for (int64_t i = first; i < end; i++) to[i] = -INFINITY;
                for (int64_t i = 0; i < it->inner; i++) {
                    int64_t place = ((const int64_t *)it->weight)[i];
                    if (place >= first && place < end) to[place] = x[r * stride + i];
                }
            }
            break;
        case ROTATE: /* x y + pick(x) z, where y and z have a period */
            rotate(it, x, y, z, out, rows, first, end);
            break;
        case WRITE: { /* heads of states to slots of their text's buffer */
            EACH_PART(step) {
                int64_t tokens = part->rows / part->texts, slots = part->sizes[it->slots];
                const int64_t *slot = part->outside[it->outside[1]];
                for (int64_t h = it->heads * thread / threads; h < it->heads * (thread + 1) / threads; h++)
                    for (int64_t r = 0; r < part->rows; r++) {
                        const float *from = x + (first_row + r) * stride + h * it->inner;
                        int64_t at = ((r / tokens * it->heads + h) * slots + slot[r]) * it->inner;
                        if (it->short_cache) take_short(from, (uint16_t *)part->outside[it->outside[0]] + at, it->inner);
                        else memcpy((float *)part->outside[it->outside[0]] + at, from, it->inner * sizeof(float));
                    }
            }
            break;
        }
        case ATTEND:
            if (is_blocked(it)) {
                attend_blocks(it, step, x, out, scratch, shared, thread, threads);
                if (shares_blocks(it, step, threads)) {
                    wait_for_all(barrier, threads);
                    add_blocks(it, step, x, out, scratch, shared, thread, threads);
                }
            } else attend(it, step, x, y, z, out, scratch, thread, threads);
            break;
        case ADD: case MUL:
            if (it->period == width) {
                for (int64_t r = 0; r < rows; r++)
                    both(x + r * stride + first, y + r * it->y.stride + first, out + r * it->out.stride + first, end - first, it->op, s);
                break;
            } /* fall through */
        case SCALE: case SHIFT: case POWER: case DIVIDE:
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = first, j = first % it->period; i < end; i++, j = j + 1 == it->period ? 0 : j + 1) {
                    float v = x[r * stride + i];
                    switch (it->op) {
                    case ADD: v += y[r * it->y.stride + j]; break;
                    case MUL: v *= y[r * it->y.stride + j]; break;
                    case SCALE: v *= (float)it->scale; break;
                    case DIVIDE: v /= (float)it->scale; break;
                    case SHIFT: v += (float)it->scale; break;
                    default: v = power(v, (float)it->scale);
                    }
                    out[r * it->out.stride + i] = rounded(v, s);
                }
            break;
        default:
            for (int64_t r = 0; r < rows; r++) {
                activate_all(x + r * stride + first, out + r * it->out.stride + first, end - first, it->op);
                if (s) round_all(out + r * it->out.stride + first, end - first);
            }
        }
        if (it->barrier) wait_for_all(barrier, threads);
    }
    if (is_tiled) release_tiles(); /* torch's own kernels shape them, too */
}

enum { NOT_DRAWN = -1, PIECE = 64 };

/* Widen a row of n logits to `v`. Returns its maximum, or NaN where there is a NaN or no finite maximum. */
static float widened(const void *logits, int64_t first, int64_t short_floats, float *v, int64_t n) {
    if (short_floats) widen_all((const uint16_t *)logits + first, v, n);
    else memcpy(v, (const float *)logits + first, n * sizeof(float));
    float most = -INFINITY;
    int known = 1;
    #pragma omp simd reduction(max:most) reduction(&:known)
    for (int64_t i = 0; i < n; i++) most = v[i] > most ? v[i] : most, known &= v[i] == v[i];
    return known && most - most == 0 ? most : NAN;
}

/* The first of the highest of n logits; NOT_DRAWN where `widened` returns NaN. */
static int64_t likeliest_of(const void *logits, int64_t first, int64_t short_floats, int64_t n) {
    const uint16_t *narrow_v = (const uint16_t *)logits + first;
    const float *v = (const float *)logits + first;
    float most = -INFINITY;
    int known = 1;
    if (short_floats) {
        #pragma omp simd reduction(max:most) reduction(&:known)
        for (int64_t i = 0; i < n; i++) { float f = wide(narrow_v[i]); most = f > most ? f : most, known &= f == f; }
    } else {
        #pragma omp simd reduction(max:most) reduction(&:known)
        for (int64_t i = 0; i < n; i++) most = v[i] > most ? v[i] : most, known &= v[i] == v[i];
    }
    if (!known || most - most != 0) return NOT_DRAWN;
    for (int64_t at = 0; ; at += PIECE) { /* first the piece, then the token in it */
        int64_t end = at + PIECE < n ? at + PIECE : n;
        int is_here = 0;
        for (int64_t i = at; i < end; i++) is_here |= (short_floats ? wide(narrow_v[i]) : v[i]) == most;
        for (int64_t i = at; is_here; i++) if ((short_floats ? wide(narrow_v[i]) : v[i]) == most) return i;
    }
}

/* The likeliest token of each of the rows [rows, n] of logits of `stride` a row. */
void likeliest(const void *logits, int64_t short_floats, int64_t stride, int64_t rows, int64_t n, int64_t *tokens) {
    for (int64_t r = 0; r < rows; r++) tokens[r] = likeliest_of(logits, r * stride, short_floats, n);
}

static inline double sum_of(const float *v, int64_t count) {
    double sum = 0;
    #pragma omp simd reduction(+:sum)
    for (int64_t i = 0; i < count; i++) sum += v[i];
    return sum;
}

/* How a row of logits becomes probabilities, T > 0: `top_k` 0 and `top_p` 1 are off. */
typedef struct { double temperature, top_p; int64_t top_k; } Sampling;

/* Numbers that are ordered as floats are, and back. */
static inline uint32_t rank_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u >> 31 ? ~u : u | 0x80000000u; }
static inline float ranked(uint32_t u) { float f; u = u >> 31 ? u & 0x7fffffffu : ~u; memcpy(&f, &u, 4); return f; }

/* The highest of n numbers at which those above and itself come to `enough`; minus infinity where all of them do not.
   Each counts 1, or with `by_mass` its own value. `above` receives what those above come to. Found digit by digit of their
   ranks, in three passes: to sort a row would take many times as long. */
enum { DIGITS = 3, VALUES = 1 << 11 };
static float reached(const float *v, int64_t n, double enough, int by_mass, double *above) {
    static const int shifts[DIGITS] = {21, 10, 0};
    uint32_t found = 0, known = 0; /* digits, and which bits they are */
    *above = 0;
    for (int place = 0; place < DIGITS; place++) {
        double sums[VALUES] = {0};
        uint32_t digit = (place + 1 < DIGITS ? VALUES : VALUES / 2) - 1;
        for (int64_t i = 0; i < n; i++) {
            uint32_t u = rank_of(v[i]);
            if ((u & known) == found) sums[u >> shifts[place] & digit] += by_mass ? v[i] : 1;
        }
        uint32_t at = digit;
        while (at > 0 && *above + sums[at] < enough) *above += sums[at--];
        if (place == 0 && *above + sums[at] < enough) return -INFINITY;
        found |= at << shifts[place], known |= digit << shifts[place];
    }
    return ranked(found);
}

/* The fewest most likely tokens whose mass comes to `top_p` but for rounding, renormalised; of equal tokens the first ones.
   As `sampling._nucleus`. */
static void keep_nucleus(float *v, int64_t n, double top_p) {
    double above, enough = top_p - 1.0 / (1 << 20);
    float least = reached(v, n, enough, 1, &above);
    for (int64_t i = 0; i < n; i++) {
        int is_kept = v[i] > least;
        if (v[i] == least) above += least, is_kept = above - least < enough; /* the mass before this token */
        if (!is_kept) v[i] = 0;
    }
    float mass = (float)sum_of(v, n);
    for (int64_t i = 0; i < n; i++) v[i] /= mass;
}

/* A row of logits as probabilities; NaN throughout where it has no finite maximum. Of top-k all that equal the k-th. */
static void soften(const void *logits, int64_t first, int64_t short_floats, float *v, int64_t n, const Sampling *how) {
    float most = widened(logits, first, short_floats, v, n), factor = 1 / (float)how->temperature;
    if (most != most) {
        for (int64_t i = 0; i < n; i++) v[i] = NAN;
        return;
    }
    if (how->top_k > 0 && how->top_k < n) { /* logits may only become equal when they are divided */
        double above;
        for (int64_t i = 0; i < n; i++) v[i] /= (float)how->temperature;
        float least = reached(v, n, how->top_k, 0, &above);
        for (int64_t i = 0; i < n; i++) v[i] = v[i] < least ? -INFINITY : v[i];
        most /= (float)how->temperature, factor = 1;
    }
    raise_all(v, n, most, factor);
    double mass = 0;
    #pragma omp simd reduction(+:mass)
    for (int64_t i = 0; i < n; i++) mass += v[i];
    factor = (float)(1 / mass);
    for (int64_t i = 0; i < n; i++) v[i] *= factor;
    if (how->top_p < 1) keep_nucleus(v, n, how->top_p);
}

/* A token from weights [n] that need not sum to 1, by inverting their distribution function: first the piece, then the
   token in it. Never one of weight 0; NOT_DRAWN where the weights are not finite. */
static int64_t drawn_from(const float *v, int64_t n, double uniform) {
    double mass = 0, before = 0;
    for (int64_t at = 0; at < n; at += PIECE) mass += sum_of(v + at, at + PIECE < n ? PIECE : n - at);
    if (!(mass > 0)) return NOT_DRAWN;
    double wanted = uniform * mass;
    int64_t found = NOT_DRAWN;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t end = at + PIECE < n ? at + PIECE : n;
        double sum = sum_of(v + at, end - at);
        if (before + sum <= wanted) { before += sum; continue; }
        for (int64_t i = at; i < end && before <= wanted; i++)
            if (v[i] > 0) before += v[i], found = i;
        if (found != NOT_DRAWN) return found;
    }
    for (int64_t i = n - 1; i >= 0; i--) if (v[i] > 0) return i; /* rounding took the last token's share */
    return NOT_DRAWN;
}

/* Rows [rows, n] of probabilities from logits of `stride` a row. */
void standardise(const void *logits, int64_t short_floats, int64_t stride, float *out, int64_t rows, int64_t n,
                 const Sampling *how) {
    #pragma omp parallel for if (rows > 1 && rows * n > 1 << 18)
    for (int64_t r = 0; r < rows; r++) soften(logits, r * stride, short_floats, out + r * n, n, how);
}

/* A token from each of the rows [rows, n]. */
void draw(const float *weights, int64_t rows, int64_t n, const double *uniforms, int64_t *tokens) {
    for (int64_t r = 0; r < rows; r++) tokens[r] = drawn_from(weights + r * n, n, uniforms[r]);
}

/* Algorithm 1 on a chain of `count` tokens: how many are accepted, and in `token` the one that follows them. `q` is 0
   where each token had all mass. `room` has n floats for the residual, which is p where less than `least` of it is left. */
int64_t verify(const float *p, const float *q, const int64_t *drafted, int64_t count, const float *uniforms,
               double uniform, double least, int64_t n, float *room, int64_t *token) {
    int64_t accepted = 0;
    for (; accepted < count; accepted++) {
        int64_t at = accepted * n + drafted[accepted];
        if (!(uniforms[accepted] * (q ? q[at] : 1) < p[at])) break;
    }
    p += accepted * n;
    const float *law = p;
    if (accepted < count) {
        if (q) for (int64_t i = 0; i < n; i++) {
            float excess = p[i] - q[accepted * n + i];
            room[i] = excess > 0 ? excess : 0;
        } else {
            memcpy(room, p, n * sizeof(float));
            room[drafted[accepted]] = 0;
        }
        if (sum_of(room, n) > least) law = room;
    }
    *token = drawn_from(law, n, uniform);
    return accepted;
}

/* How the token that follows is chosen from logits [rows, stride], by the last row: its argmax, or a draw from its
   standardised row. `rows` receives the rows [G, vocabulary] that were drawn from, `tokens` the tokens, or NOT_DRAWN. */
typedef struct {
    const void *logits; int64_t short_floats, stride, vocabulary;
    Sampling how; const double *uniforms; float *rows; /* how: at temperature 0 the argmax */
    int64_t *tokens; const int64_t *ends; int64_t end_count;
} Choice;

static int64_t choose(const Choice *choice, int64_t row, int64_t step) {
    int64_t n = choice->vocabulary, first = row * choice->stride;
    if (choice->how.temperature > 0) {
        float *v = choice->rows + step * n;
        soften(choice->logits, first, choice->short_floats, v, n, &choice->how);
        return drawn_from(v, n, choice->uniforms[step]);
    }
    return likeliest_of(choice->logits, first, choice->short_floats, n);
}

static int team(int *threads) {
#ifdef _OPENMP
    *threads = omp_get_num_threads();
    return omp_get_thread_num();
#else
    *threads = 1;
    return 0;
#endif
}

/* Run a step. `scratch` has `scratch_size` floats for each thread, and behind them what they share. */
void run(const Step *step, float *arena, float *scratch, int64_t scratch_size, int64_t most_threads) {
    Barrier barrier = {0, 0};
    place_parts(step);
    #pragma omp parallel num_threads(most_threads)
    {
        int threads, thread = team(&threads);
        run_step(step, arena, scratch + thread * scratch_size, scratch + most_threads * scratch_size, &barrier, thread, threads);
    }
}

/* A layer's experts: the weights of each as `pack` puts them, and biases [X, N] and [X, E] or null. The first map has N
   outputs, which a gate makes M of; `clamped` is GPT-OSS's gate over neighbours, the others are halves. */
typedef struct {
    const void *const *up, *const *down;
    const char *up_bias, *down_bias;
    int64_t experts, width, inner, short_floats, activation, clamped;
    double alpha, limit;
} Experts;

/* Rows of an expert through one of its maps, the blocks that are this thread's. */
static void map_rows(const Experts *e, const void *weight, const char *bias, int64_t expert, const float *x, int64_t k,
                     float *out, int64_t n, int64_t rows, float *scratch, int thread, int threads) {
    Instruction it = {.inner = k, .width = n, .short_floats = e->short_floats, .activation = -1, .weight = weight};
    it.bias = bias ? bias + expert * n * (e->short_floats ? 2 : 4) : 0, it.out.stride = n;
    if (has_tiles && e->short_floats) shape_tiles(rows);
    linear(&it, x, k, out, 0, rows, scratch, thread, threads);
}

/* The results [N] of an expert's first map to the inputs [M] of its second, rounded where torch's operations round. */
static void gate_row(const Experts *e, float *v, float *out) {
    int64_t m = e->inner, s = e->short_floats;
    float alpha = (float)e->alpha, limit = (float)e->limit;
    if (!e->clamped) {
        activate_all(v, out, m, e->activation);
        for (int64_t i = 0; i < m; i++) out[i] = rounded(rounded(out[i], s) * v[m + i], s);
        return;
    }
    for (int64_t i = 0; i < m; i++) {
        float gate = v[2 * i], up = v[2 * i + 1];
        gate = gate > limit ? limit : gate, up = up > limit ? limit : up < -limit ? -limit : up;
        float turned = rounded(1.0f / (1.0f + expf(-rounded(gate * alpha, s))), s);
        out[i] = rounded(rounded(up + 1.0f, s) * rounded(gate * turned, s), s);
    }
}

/* To `out` [T, E], as the model's numbers: of each token its `per_token` experts' results, weighed and added up in the
   order in which they were chosen. The weights of an expert that is hit are read once. `room` has space for
   tokens * per_token * (2 * width + N + inner) floats and as many numbers again as pairs and experts, and `scratch` of
   each thread for as many rows as a map reads. */
void mix_experts(const Experts *e, const void *states, const int64_t *chosen, const void *weights, int64_t short_weights,
                 int64_t tokens, int64_t per_token, void *out, float *room, float *scratch, int64_t scratch_size,
                 int64_t most_threads) {
    int64_t s = e->short_floats, width = e->width, m = e->inner, n = 2 * m, pairs = tokens * per_token;
    float *x = room, *mapped = x + pairs * width, *gated_rows = mapped + pairs * n, *found = gated_rows + pairs * m;
    int64_t *place = (int64_t *)(found + pairs * width + (pairs * (3 * m) & 1)), *begin = place + pairs;
    memset(begin, 0, (e->experts + 1) * sizeof(int64_t));
    for (int64_t pair = 0; pair < pairs; pair++) begin[chosen[pair] + 1]++;
    for (int64_t i = 0; i < e->experts; i++) begin[i + 1] += begin[i];
    for (int64_t pair = 0; pair < pairs; pair++) place[pair] = begin[chosen[pair]]++; /* rows by expert, then by token */
    for (int64_t i = e->experts; i > 0; i--) begin[i] = begin[i - 1];
    begin[0] = 0;
    Barrier barrier = {0, 0};
    #pragma omp parallel num_threads(most_threads)
    {
        int threads, thread = team(&threads);
        float *own = scratch + thread * scratch_size;
        for (int64_t pair = pairs * thread / threads; pair < pairs * (thread + 1) / threads; pair++) {
            const char *row = (const char *)states + pair / per_token * width * (s ? 2 : 4);
            if (s) widen_all((const uint16_t *)row, x + place[pair] * width, width);
            else memcpy(x + place[pair] * width, row, width * sizeof(float));
        }
        wait_for_all(&barrier, threads);
        for (int64_t i = 0; i < e->experts; i++)
            if (begin[i + 1] > begin[i])
                map_rows(e, e->up[i], e->up_bias, i, x + begin[i] * width, width, mapped + begin[i] * n, n,
                         begin[i + 1] - begin[i], own, thread, threads);
        wait_for_all(&barrier, threads);
        for (int64_t r = pairs * thread / threads; r < pairs * (thread + 1) / threads; r++)
            gate_row(e, mapped + r * n, gated_rows + r * m);
        wait_for_all(&barrier, threads);
        for (int64_t i = 0; i < e->experts; i++)
            if (begin[i + 1] > begin[i])
                map_rows(e, e->down[i], e->down_bias, i, gated_rows + begin[i] * m, m, found + begin[i] * width, width,
                         begin[i + 1] - begin[i], own, thread, threads);
        wait_for_all(&barrier, threads);
        int64_t first = width * thread / threads, end = width * (thread + 1) / threads;
        for (int64_t t = 0; t < tokens; t++) {
            float *sum = own;
            memset(sum, 0, (end - first) * sizeof(float));
            for (int64_t pair = t * per_token; pair < (t + 1) * per_token; pair++) {
                float by = weight_at(weights, pair, short_weights), *row = found + place[pair] * width + first;
                for (int64_t i = 0; i < end - first; i++) sum[i] += rounded(row[i] * by, s && short_weights);
            }
            char *to = (char *)out + (t * width + first) * (s ? 2 : 4);
            if (s) shorten_all(sum, (uint16_t *)to, end - first);
            else memcpy(to, sum, (end - first) * sizeof(float));
        }
        if (has_tiles && s) release_tiles();
    }
}

/* Whether `token` ends the sequence, or none could be drawn. */
static int is_last(const Choice *choice, int64_t token) {
    int over = token == NOT_DRAWN;
    for (int64_t i = 0; i < choice->end_count; i++) over |= token == choice->ends[i];
    return over;
}

/* Run steps, each of which reads the token chosen after the step before. Returns the number of tokens chosen: the last
   is the first end of a text, or NOT_DRAWN, where there is one. */
int64_t rollout(const Step *steps, int64_t count, const Choice *choice, float *arena, float *scratch,
                int64_t scratch_size, int64_t most_threads) {
    int64_t chosen = 0;
    int over = 0;
    Barrier barrier = {0, 0};
    for (int64_t g = 0; g < count; g++) place_parts(steps + g);
    #pragma omp parallel num_threads(most_threads)
    {
        int threads, thread = team(&threads);
        for (int64_t g = 0; g < count && !over; g++) {
            run_step(steps + g, arena, scratch + thread * scratch_size, scratch + most_threads * scratch_size, &barrier, thread,
                     threads);
            wait_for_all(&barrier, threads);
            if (thread == 0) {
                int64_t token = choice->tokens[g] = choose(choice, steps[g].rows - 1, g);
                chosen = g + 1, over = is_last(choice, token);
            }
            wait_for_all(&barrier, threads);
        }
    }
    return chosen;
}

/* One model of a pass: `steps[n]` reads n tokens, up to `most`, and `placed[n][length]` is what it reads after `length`
   tokens, null where that has not been looked up. */
typedef struct {
    Step *const *steps; void *const *const *const *placed;
    int64_t most, length, capacity;
    float *arena; void *logits; Choice choice;
    double ran_s; /* its steps in this pass */
} Reader;

/* The result of a pass, when drafting, verifying and accepting ended, and how long the steps of both models took. */
typedef struct {
    int64_t drafted, accepted, emitted;
    double drafted_s, verified_s, over_s, draft_ran_s, target_ran_s;
} Pass;

/* Passes over a text: its tokens, how many there are and may be, and gamma. `given`: how many tokens a pass tests that
   were drafted elsewhere and follow the text, with their q in the draft's rows or none where each had all mass; below 0
   the draft is a model, and drafts. Random numbers are those of the first pass, then of the next; at T = 0 there are no
   `nexts`. */
typedef struct {
    int64_t *tokens, length, end, gamma, most, given;
    const float *trials; const double *nexts; double least; /* as `verify` takes them */
    float *room; int64_t *best; /* for a row, and for gamma + 1 tokens */
    Pass *done; int64_t *drafted; /* gamma tokens of each pass, rejected ones too */
} Passes;

/* As Python's time.perf_counter. */
static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Whether `reader` can read `count` tokens after the first `length`. */
static int is_ready(const Reader *reader, int64_t length, int64_t count) {
    return count <= reader->most && length + count <= reader->capacity && reader->placed[count] && reader->placed[count][length];
}

/* The draft tokens of the next pass; -1 where there is none, or a model is not ready for it. */
static int64_t next_size(const Reader *draft, const Reader *target, const Passes *of) {
    int64_t room = of->end - of->length - 1, size = of->gamma < room ? of->gamma : room;
    if (of->given >= 0) size = of->given;
    if (size < 0 || !is_ready(target, target->length, size + 1)) return -1;
    for (int64_t g = 0; g < size && of->given < 0; g++)
        if (!is_ready(draft, g ? of->length + g - 1 : draft->length, g ? 1 : of->length - draft->length)) return -1;
    return size;
}

/* Read the next `count` of `tokens`. */
static void read_on(Reader *reader, int64_t *tokens, int64_t count, float *scratch, float *shared, Barrier *barrier, int thread,
                    int threads) {
    const Step *step = reader->steps[count];
    if (thread == 0) {
        Part *part = (Part *)step->parts;
        part->placed = reader->placed[count][reader->length];
        place_parts(step);
        part->outside[part->ids] = tokens + reader->length, part->outside[part->results] = reader->logits;
        reader->length += count;
    }
    wait_for_all(barrier, threads);
    double began = thread == 0 ? now_s() : 0;
    run_step(step, reader->arena, scratch, shared, barrier, thread, threads);
    wait_for_all(barrier, threads);
    if (thread == 0) reader->ran_s += now_s() - began;
}

/* Algorithm 1's verdict on `drafted`, by p or at T = 0 by its argmax: what the pass emits is appended. Returns whether the
   text is over. */
static int conclude(const Passes *of, const Choice *drafting, const Choice *choosing, int64_t *drafted, int64_t count,
                    int64_t pass) {
    Pass *done = of->done + pass;
    int64_t accepted = 0, token, is_ended = 0;
    if (of->nexts) {
        accepted = verify(choosing->rows, drafting->rows, drafted, count, of->trials + pass * of->gamma, of->nexts[pass], of->least,
                          choosing->vocabulary, of->room, &token);
    } else {
        while (accepted < count && drafted[accepted] == of->best[accepted]) accepted++;
        token = of->best[accepted];
    }
    memcpy(of->drafted + pass * of->gamma, drafted, count * sizeof(int64_t));
    for (int64_t i = 0; i < accepted && !is_ended; i++)
        if (is_last(choosing, drafted[i])) accepted = i + 1, is_ended = 1; /* what follows an end is no part of the text */
    if (!is_ended) drafted[accepted] = token;
    done->drafted = count, done->accepted = accepted, done->emitted = accepted + !is_ended;
    return is_ended || is_last(choosing, token);
}

/* Passes of Algorithm 1 on a chain, up to `most`, the end of the text, or one that a model is not ready for; at gamma 0
   steps of the target alone. Where the draft ends the text, the target reads as many tokens as otherwise. Returns how
   many passes were over, and -1 where a row was not finite. */
int64_t speculate(Reader *draft, Reader *target, Passes *of, float *scratch, int64_t scratch_size, int64_t most_threads) {
    int64_t pass = 0, asked = 0, count = 0;
    int ended = 0, over = 0, failed = 0;
    Barrier barrier = {0, 0};
    #pragma omp parallel num_threads(most_threads)
    {
        int threads, thread = team(&threads);
        float *own = scratch + thread * scratch_size, *shared = scratch + most_threads * scratch_size;
        for (;;) {
            const Choice *choosing = &target->choice;
            Choice drafting = draft->choice;
            int64_t *drafted = of->tokens + of->length, n = choosing->vocabulary;
            if (drafting.uniforms) drafting.uniforms += pass * of->gamma;
            if (thread == 0) {
                asked = count = ended || failed || pass == of->most ? -1 : next_size(draft, target, of);
                over = asked < 0;
            }
            wait_for_all(&barrier, threads);
            if (over) break;
            for (int64_t g = 0; g < count && of->given < 0; g++) {
                int64_t unread = of->length + g - draft->length;
                wait_for_all(&barrier, threads); /* all have read the length */
                read_on(draft, of->tokens, unread, own, shared, &barrier, thread, threads);
                if (thread == 0) {
                    drafted[g] = choose(&drafting, unread - 1, g);
                    failed = drafted[g] == NOT_DRAWN;
                    if (is_last(&drafting, drafted[g])) {
                        for (int64_t i = g + 1; i < asked; i++) drafted[i] = drafted[g];
                        count = g + 1;
                    }
                }
                wait_for_all(&barrier, threads);
            }
            if (failed) break;
            if (thread == 0) of->done[pass].drafted_s = now_s();
            read_on(target, of->tokens, asked + 1, own, shared, &barrier, thread, threads);
            for (int64_t r = thread, s = choosing->short_floats; r <= count; r += threads)
                if (of->nexts) soften(choosing->logits, r * choosing->stride, s, choosing->rows + r * n, n, &choosing->how);
                else of->best[r] = likeliest_of(choosing->logits, r * choosing->stride, s, n);
            wait_for_all(&barrier, threads);
            if (thread == 0) {
                Pass *done = of->done + pass;
                done->verified_s = now_s();
                ended = conclude(of, &drafting, choosing, drafted, count, pass);
                failed = done->emitted > done->accepted && drafted[done->accepted] == NOT_DRAWN;
                of->length += done->emitted, target->length = of->length - 1;
                if (of->given < 0 && draft->length > target->length) draft->length = target->length;
                done->draft_ran_s = draft->ran_s, done->target_ran_s = target->ran_s;
                draft->ran_s = target->ran_s = 0;
                done->over_s = now_s(), pass++;
            }
            wait_for_all(&barrier, threads);
        }
    }
    return failed ? -1 : pass;
}
