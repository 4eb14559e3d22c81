/* Numbers in vectors: the registers of this machine, conversions to bf16 and back, exp, and sums of lanes. */

#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES
#endif

/* Instructions for bf16 multiply numbers as they are, two inputs at once. Where an Intel processor has them and shows no AMX, as in
   some virtual machines, bf16 is widened all the same: they make 87 GF/s of a core there, and those for fp32 180. On AMD's
   processors up to Zen 5, which have no AVX512-FP16, they are the faster ones. (AMX that Linux refuses leaves the pairs; so does a
   compiler that does not know AVX512-FP16, as GCC 11.) */
#if defined(__AVX512BF16__) && (defined(__AMX_BF16__) || !defined(__AVX512FP16__))
#define BF16_PAIRS
#elif defined(__AVX512BF16__)
#define BF16_WIDENED
#endif

/* A vector is a register of this machine: one that is spread over two or four costs ten times as much. */
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
/* Instructions that add the products of four neighbouring bytes to each word of a vector: VNNI, and ARM's dot products. */
#if (BYTES == 64 && defined(__AVX512VNNI__)) || (BYTES == 32 && defined(__AVXVNNI__)) || defined(__ARM_FEATURE_DOTPROD)
#define BYTE_DOTS
#endif
typedef float vec __attribute__((vector_size(BYTES), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(BYTES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(BYTES), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(BYTES / 2), aligned(2)));
enum { LANES = BYTES / 4, BLOCK = 2 * LANES };

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
static void shorten_all(const float *restrict v, uint16_t *restrict out, int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = narrow(v[i]);
}

/* Of numbers that are bf16 already, as all values of an arena are if the model computes in it. */
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

/* `sum` plus products, rounded once if the machine can. Nothing else is fused (-ffp-contract=off): a compiler would do
   so in some of the loops for one row and for many, and not in others. */
static inline vec add_products(vec sum, vec a, vec b) {
#if defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#elif BYTES == 64
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif BYTES == 32 && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return sum + a * b;
#endif
}
static inline vec add_product(vec sum, vec many, float one) {
#if defined(__aarch64__)
    return (vec)vfmaq_n_f32((float32x4_t)sum, (float32x4_t)many, one);
#elif BYTES == 64
    return add_products(sum, many, (vec)_mm512_set1_ps(one));
#elif BYTES == 32 && defined(__FMA__)
    return add_products(sum, many, (vec)_mm256_set1_ps(one));
#else
    return sum + many * one;
#endif
}

/* exp for x <= 0, to 2 units in the last place; 0 below -80. In vectors: left to itself the compiler would branch. */
static inline vec exp_below(vec x) {
    ints kept = ~(x < -80.0f); /* a NaN is */
    x = (vec)((ints)x & kept);
    ints whole = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);
    vec n = __builtin_convertvector(whole, vec), none = {0};
    vec r = add_product(add_product(x, n, -0.693359375f), n, 2.12194440e-4f);
    vec p = add_product(none + 1.3981999507e-3f, r, 1.9875691500e-4f);
    p = add_products(none + 8.3334519073e-3f, p, r), p = add_products(none + 4.1665795894e-2f, p, r);
    p = add_products(none + 1.6666665459e-1f, p, r), p = add_products(none + 5.0000001201e-1f, p, r);
    p = add_products(r, p * r, r) + 1.0f;
    return (vec)((ints)(p * (vec)((whole + 127) << 23)) & kept);
}

#ifdef __AVX512F__
/* 2 to the power of x to 3 units in a million, which bf16 does not tell from `exp_below`, in half the operations; 0 below -160. */
static inline vec power_of_two(vec x) {
    __m512 power = _mm512_max_ps(_mm512_set1_ps(-160), (__m512)x); /* the second one if it is a NaN */
    __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vec r = (vec)_mm512_sub_ps(power, whole), none = {0};
    vec p = add_products(none + 5.59064259e-2f, none + 9.58285324e-3f, r);
    p = add_products(none + 2.40240986e-1f, p, r), p = add_products(none + 6.93124193e-1f, p, r);
    return (vec)_mm512_scalef_ps((__m512)add_products(none + 1.0f, p, r), whole);
}
#endif

/* exp((v - most) * factor) for each of v, none of which is above `most`. */
static void exp_all(float *v, int64_t count, float most, float factor) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) *(vec *)(v + i) = exp_below((*(vec *)(v + i) - most) * factor);
    float left[LANES] = {0};
    memcpy(left, v + i, (count - i) * sizeof(float));
    *(vec *)left = exp_below((*(vec *)left - most) * factor);
    memcpy(v + i, left, (count - i) * sizeof(float));
}

/* Weights are fetched before they are needed: past the end of a page the processor's own fetching stops, and what another
   model has pushed out of the cache comes from memory. A product of several rows fetches one page ahead. One row reads as fast
   without, but where bf16 is widened: there a step is 7% faster by it. (8 rows of a map in bf16 pairs, on 2 cores with AVX-512:
   1.05 times one row; half a page or two ahead 1.4 times.) */
#define UNROLLED _Pragma("GCC unroll 16")
#define INLINED static inline __attribute__((always_inline)) void /* sizes that a caller gives as constants are known in it */
enum { LINE = 64, PAGE = 1 << 12, AT_FIRST = 1 << 15 }; /* bytes */

static inline void fetch(const char *from, int64_t bytes) {
    UNROLLED for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(from + at, 0, 2);
}

/* The same of more bytes than are worth unrolling. */
static inline void fetch_lines(const char *from, int64_t bytes) {
    for (const char *at = from; at < from + bytes; at += LINE) __builtin_prefetch(at, 0, 2);
}

/* Weights that a product reads soon: where bf16 is widened, to the first cache, and also for one row. */
#ifdef BF16_WIDENED
enum { SOON = 3, FETCHES_FOR_ONE = 1 };
#else
enum { SOON = 2, FETCHES_FOR_ONE = 0 };
#endif
static inline void fetch_weights(const char *from, int64_t bytes) {
    UNROLLED for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(from + at, 0, SOON);
}

/* The last channels, fewer than a vector has, and zeros. In loops over single numbers the compiler would round the sums
   of some tiles once per product and of others twice. */
static inline vec last_channels(const float *v, int64_t count) {
#ifdef __AVX512F__
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1 << count) - 1), v);
#else
    vec some = {0};
    memcpy(&some, v, count * sizeof(float));
    return some;
#endif
}

/* Numbers rounded to bf16 in their place. */
static inline void round_all(float *v, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) *(vec *)(v + i) = shortened(*(const vec *)(v + i));
    if (i == count) return;
    vec last = shortened(last_channels(v + i, count - i));
    memcpy(v + i, &last, (count - i) * sizeof(float));
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

/* The sums of neighbours of `a`, then of `b`. */
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

/* The sum in fp64 of `count` numbers: of every AT_ONCE-th in a lane, then of the lanes in order. Written in vectors: of a
   loop with `omp simd reduction` GCC 12 makes, for SVE and a count that it knows, a read of the lanes before they are
   written. */
typedef double doubles __attribute__((vector_size(BYTES), aligned(4)));
typedef float half_vec __attribute__((vector_size(BYTES / 2), aligned(4)));
enum { HALF = LANES / 2 };
static double sum_of(const float *v, int64_t count) {
    enum { AT_ONCE = 4 };
    doubles sum[AT_ONCE] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + AT_ONCE * HALF <= count; i += AT_ONCE * HALF)
        UNROLLED for (int j = 0; j < AT_ONCE; j++) sum[j] += __builtin_convertvector(*(const half_vec *)(v + i + j * HALF), doubles);
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0;
    for (int lane = 0; lane < HALF; lane++) total += sum[0][lane];
    for (; i < count; i++) total += v[i];
    return total;
}

/* Write the first `count` numbers of v: as floats to `out`, or to `shorts` if v holds bf16 numbers. A whole vector needs no
   call of memcpy. */
static inline void put(vec v, float *out, uint16_t *shorts, int64_t count) {
    if (shorts) {
        halves h = __builtin_convertvector((bits)v >> 16, halves);
        if (count == LANES) *(halves *)shorts = h;
        else memcpy(shorts, &h, count * sizeof(uint16_t));
    } else if (count == LANES) *(vec *)out = v;
    else memcpy(out, &v, count * sizeof(float));
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

/* The highest of `count` numbers, bf16 ones if `is_short`; NaN if one of them is, or none is finite. */
static inline __attribute__((always_inline)) float highest_of(const void *numbers, int64_t first, int64_t count, const int is_short) {
    vec most = (vec){0} - INFINITY;
    ints known = ~(ints){0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vec v = some_numbers(numbers, first + i, LANES, is_short);
        most = larger(v, most), known &= v == v;
    }
    float highest = most_of_lanes(most);
    int is_known = 1;
    for (int lane = 0; lane < LANES; lane++) is_known &= known[lane] != 0;
    for (; i < count; i++) {
        float f = weight_at(numbers, first + i, is_short);
        highest = f > highest ? f : highest, is_known &= f == f;
    }
    return is_known && highest - highest == 0 ? highest : NAN;
}
