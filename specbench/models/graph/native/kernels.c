/* A decoding step as a list of instructions on rows of floats: one call, one team of threads.

   Values lie in an arena as fp32, rounded to bf16 after each operation where the model computes in bf16, so that they
   round where torch's operations do. Sums of a linear map go along the inner size in order, whatever the number of rows.

   L rows, K inner size, N outputs of a map, H query heads, G key heads, C slots, D channels of a head. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

typedef float vec __attribute__((vector_size(64), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(64), aligned(4)));
enum { LANES = 16, BLOCK = 32 };
enum { EMBED, LOAD, STORE, NORM, LINEAR, WRITE, ATTEND, ADD, MUL, SCALE, RELU, SILU, GELU, GELU_TANH };

/* Where a value lies: at `at` * L + `column` of the arena, `stride` floats from row to row. */
typedef struct { int64_t at, column, stride; } Ref;

typedef struct {
    int64_t op, width, inner, heads, key_heads, short_floats, barrier, centred;
    int64_t outside[4]; /* numbers of tensors from outside: what they are depends on the operation */
    int64_t slots, bias_heads, bias_rows; /* numbers of sizes from outside; the bias' are 1 or not */
    Ref out, x, y;
    const void *weight, *bias, *norm_weight, *norm_bias;
    double scale, epsilon;
    int64_t activation, residual, normed;
} Instruction;

static inline float wide(uint16_t b) { uint32_t u = (uint32_t)b << 16; float f; memcpy(&f, &u, 4); return f; }

static inline uint16_t narrow(float f) {
    uint32_t u; memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float rounded(float f, int64_t is_short) { return is_short ? wide(narrow(f)) : f; }

static inline float weight_at(const void *weight, int64_t i, int64_t is_short) {
    return is_short ? wide(((const uint16_t *)weight)[i]) : ((const float *)weight)[i];
}

/* exp for x <= 0, to 2 units in the last place; vectorised by the compiler. */
static inline float exp_below(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = (float)(int32_t)(x * 1.44269504f - 0.5f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t u = ((int32_t)n + 127) << 23; float two; memcpy(&two, &u, 4);
    return p * two;
}

/* The number of floats (bf16: of 16 bits) that `pack` writes. */
int64_t packed_size(int64_t n, int64_t k) { return (n + BLOCK - 1) / BLOCK * BLOCK * k; }

/* Weights [N, K] as blocks of 32 outputs, input by input; in bf16 outputs j and j + 16 share a word. */
void pack(const void *weight, void *out, int64_t n, int64_t k, int64_t is_short) {
    for (int64_t b = 0; b * BLOCK < n; b++)
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < BLOCK; j++) {
                int64_t row = b * BLOCK + j, to = (b * k + i) * BLOCK;
                if (is_short)
                    ((uint16_t *)out)[to + (j % LANES) * 2 + j / LANES] =
                        row < n ? ((const uint16_t *)weight)[row * k + i] : 0;
                else
                    ((float *)out)[to + j] = row < n ? ((const float *)weight)[row * k + i] : 0;
            }
}

#define PRODUCT(name, ROWS, BLOCKS, SHORT)                                                                             \
    static void name(const float *x, int64_t x_stride, const void *weight, int64_t k, float *out) {                    \
        vec sum[ROWS][BLOCKS][2];                                                                                      \
        for (int r = 0; r < ROWS; r++)                                                                                 \
            for (int b = 0; b < BLOCKS; b++) sum[r][b][0] = sum[r][b][1] = (vec){0};                                   \
        for (int64_t i = 0; i < k; i++)                                                                                \
            for (int b = 0; b < BLOCKS; b++) {                                                                         \
                vec low, high;                                                                                         \
                if (SHORT) {                                                                                           \
                    bits both = *(const bits *)((const uint16_t *)weight + (b * k + i) * BLOCK);                       \
                    low = (vec)(both << 16), high = (vec)(both & 0xffff0000u);                                         \
                } else {                                                                                               \
                    const float *w = (const float *)weight + (b * k + i) * BLOCK;                                      \
                    low = *(const vec *)w, high = *(const vec *)(w + LANES);                                           \
                }                                                                                                      \
                for (int r = 0; r < ROWS; r++) {                                                                       \
                    sum[r][b][0] += low * x[r * x_stride + i];                                                         \
                    sum[r][b][1] += high * x[r * x_stride + i];                                                        \
                }                                                                                                      \
            }                                                                                                          \
        for (int r = 0; r < ROWS; r++)                                                                                 \
            for (int b = 0; b < BLOCKS; b++) memcpy(out + (r * BLOCKS + b) * BLOCK, sum[r][b], sizeof sum[r][b]);      \
    }

PRODUCT(short_1x4, 1, 4, 1) PRODUCT(short_1x1, 1, 1, 1) PRODUCT(short_2x2, 2, 2, 1) PRODUCT(short_2x1, 2, 1, 1)
PRODUCT(short_4x2, 4, 2, 1) PRODUCT(short_4x1, 4, 1, 1) PRODUCT(short_8x1, 8, 1, 1)
PRODUCT(wide_1x4, 1, 4, 0) PRODUCT(wide_1x1, 1, 1, 0) PRODUCT(wide_2x2, 2, 2, 0) PRODUCT(wide_2x1, 2, 1, 0)
PRODUCT(wide_4x2, 4, 2, 0) PRODUCT(wide_4x1, 4, 1, 0) PRODUCT(wide_8x1, 8, 1, 0)

typedef void (*Product)(const float *, int64_t, const void *, int64_t, float *);

/* The product for at most so many rows and blocks, and how many it takes. */
static Product choose(int64_t rows, int64_t blocks, int64_t is_short, int *rows_taken, int *blocks_taken) {
    *rows_taken = rows >= 8 ? 8 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
    int most = *rows_taken == 1 ? 4 : *rows_taken == 8 ? 1 : 2;
    *blocks_taken = blocks >= most ? most : 1;
    int many = *blocks_taken > 1;
    switch (*rows_taken) {
    case 8: return is_short ? short_8x1 : wide_8x1;
    case 4: return is_short ? (many ? short_4x2 : short_4x1) : (many ? wide_4x2 : wide_4x1);
    case 2: return is_short ? (many ? short_2x2 : short_2x1) : (many ? wide_2x2 : wide_2x1);
    default: return is_short ? (many ? short_1x4 : short_1x1) : (many ? wide_1x4 : wide_1x1);
    }
}

static float activated(float v, int64_t kind) {
    switch (kind) {
    case RELU: return v < 0 ? 0 : v;
    case SILU: return v / (1.0f + expf(-v));
    case GELU: return 0.5f * v * (1.0f + erff(v * 0.70710678118f));
    case GELU_TANH: return 0.5f * v * (1.0f + tanhf(0.79788456080f * (v + 0.044715f * v * v * v)));
    default: return v;
    }
}

/* Root mean square norm, or with `centred` layer norm, of one row. */
static void norm_row(const Instruction *it, const float *x, float *out, int64_t width) {
    float mean = 0, square = 0;
    if (it->centred) {
        #pragma omp simd reduction(+:mean)
        for (int64_t i = 0; i < width; i++) mean += x[i];
        mean /= width;
    }
    #pragma omp simd reduction(+:square)
    for (int64_t i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
    float factor = 1.0f / sqrtf(square / width + (float)it->epsilon);
    for (int64_t i = 0; i < width; i++) {
        float v = (x[i] - mean) * factor;
        if (it->norm_weight) v *= weight_at(it->norm_weight, i, it->short_floats);
        if (it->norm_bias) v += weight_at(it->norm_bias, i, it->short_floats);
        out[i] = rounded(v, it->short_floats);
    }
}

static void linear(const Instruction *it, const float *x, int64_t x_stride, float *out, const float *more,
                   int64_t rows, int thread, int threads) {
    int64_t k = it->inner, n = it->width, blocks = (n + BLOCK - 1) / BLOCK, item = it->short_floats ? 2 : 4;
    int64_t first = blocks * thread / threads, end = blocks * (thread + 1) / threads;
    int rows_taken, blocks_taken;
    float sums[8 * BLOCK];
    for (int64_t r = 0; r < rows; r += rows_taken)
        for (int64_t b = first; b < end; b += blocks_taken) {
            Product product = choose(rows - r, end - b, it->short_floats, &rows_taken, &blocks_taken);
            product(x + r * x_stride, x_stride, (const char *)it->weight + b * BLOCK * k * item, k, sums);
            int64_t from = b * BLOCK, count = blocks_taken * BLOCK;
            if (count > n - from) count = n - from;
            for (int i = 0; i < rows_taken; i++) {
                float *to = out + (r + i) * it->out.stride + from, *sum = sums + i * blocks_taken * BLOCK;
                if (it->bias) for (int64_t j = 0; j < count; j++) sum[j] += weight_at(it->bias, from + j, it->short_floats);
                if (it->short_floats) for (int64_t j = 0; j < count; j++) sum[j] = wide(narrow(sum[j]));
                if (it->activation == RELU)
                    for (int64_t j = 0; j < count; j++) sum[j] = sum[j] < 0 ? 0 : sum[j];
                else if (it->activation >= 0)
                    for (int64_t j = 0; j < count; j++) sum[j] = rounded(activated(sum[j], it->activation), it->short_floats);
                if (more) {
                    const float *beside = more + (r + i) * it->y.stride + from;
                    for (int64_t j = 0; j < count; j++) sum[j] = rounded(sum[j] + beside[j], it->short_floats);
                }
                memcpy(to, sum, count * sizeof(float));
            }
        }
}

/* Softmax attention of the query heads' rows, over the slots that the bias leaves visible. */
static void attend(const Instruction *it, const float *q, float *out, const float *keys, const float *values,
                   const float *bias, int64_t slots, int bias_heads, int bias_rows, int64_t rows, float *weights,
                   int thread, int threads) {
    int64_t d = it->inner, group = it->heads / it->key_heads, units = it->heads * rows;
    for (int64_t unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        int64_t h = unit / rows, r = unit % rows;
        const float *query = q + r * it->x.stride + h * d;
        const float *key = keys + h / group * slots * d, *value = values + h / group * slots * d;
        const float *added = bias ? bias + ((bias_heads ? h : 0) * (bias_rows ? rows : 1) + (bias_rows ? r : 0)) * slots : 0;
        float most = -INFINITY, total = 0;
        for (int64_t c = 0; c < slots; c++) {
            if (added && added[c] < -1e30f) { weights[c] = -INFINITY; continue; }
            float dot = 0;
            #pragma omp simd reduction(+:dot)
            for (int64_t i = 0; i < d; i++) dot += query[i] * key[c * d + i];
            weights[c] = dot * (float)it->scale + (added ? added[c] : 0);
            most = weights[c] > most ? weights[c] : most;
        }
        #pragma omp simd
        for (int64_t c = 0; c < slots; c++) weights[c] = weights[c] < most - 80 ? 0 : exp_below(weights[c] - most);
        for (int64_t c = 0; c < slots; c++) total += weights[c];
        float *mixed = out + r * it->out.stride + h * d;
        for (int64_t i = 0; i < d; i++) mixed[i] = 0;
        for (int64_t c = 0; c < slots; c++) {
            if (weights[c] == 0) continue;
            float weight = weights[c] / total;
            #pragma omp simd
            for (int64_t i = 0; i < d; i++) mixed[i] += weight * value[c * d + i];
        }
        for (int64_t i = 0; i < d; i++) mixed[i] = rounded(mixed[i], it->short_floats);
    }
}

/* Run the program. `outside` are tensors' data, `sizes` numbers of slots, heads and rows, `scratch` has `scratch_size`
   floats for each thread. */
void run(const Instruction *program, int64_t count, void *const *outside, const int64_t *sizes, float *arena,
         int64_t rows, float *all_scratch, int64_t scratch_size, int64_t most_threads) {
    #pragma omp parallel num_threads(most_threads)
    {
#ifdef _OPENMP
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
#else
        int thread = 0, threads = 1;
#endif
        float *scratch = all_scratch + thread * scratch_size;
        for (const Instruction *it = program; it < program + count; it++) {
            int64_t s = it->short_floats, width = it->width;
            float *out = arena + it->out.at * rows + it->out.column;
            const float *x = arena + it->x.at * rows + it->x.column, *y = arena + it->y.at * rows + it->y.column;
            int64_t first = width * thread / threads, end = width * (thread + 1) / threads, stride = it->x.stride;
            if (it->normed) { /* each thread for itself: cheaper than to wait for each other */
                for (int64_t r = 0; r < rows; r++) norm_row(it, x + r * stride, scratch + r * it->inner, it->inner);
                x = scratch, stride = it->inner;
            }
            switch (it->op) {
            case EMBED:
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t i = first; i < end; i++)
                        out[r * it->out.stride + i] =
                            weight_at(it->weight, ((const int64_t *)outside[it->outside[0]])[r] * width + i, s);
                break;
            case LOAD:
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t i = first; i < end; i++)
                        out[r * it->out.stride + i] = weight_at(outside[it->outside[0]], r * width + i, s);
                break;
            case STORE:
                for (int64_t r = 0; r < rows; r++)
                    if (s) for (int64_t i = first; i < end; i++)
                        ((uint16_t *)outside[it->outside[0]])[r * width + i] = narrow(x[r * it->x.stride + i]);
                    else for (int64_t i = first; i < end; i++)
                        ((float *)outside[it->outside[0]])[r * width + i] = x[r * it->x.stride + i];
                break;
            case NORM:
                for (int64_t r = rows * thread / threads; r < rows * (thread + 1) / threads; r++)
                    norm_row(it, x + r * stride, out + r * it->out.stride, width);
                break;
            case LINEAR:
                linear(it, x, stride, out, it->residual ? y : 0, rows, thread, threads);
                break;
            case WRITE: /* heads of states to slots of a buffer */
                for (int64_t h = it->heads * thread / threads; h < it->heads * (thread + 1) / threads; h++)
                    for (int64_t r = 0; r < rows; r++) {
                        int64_t slot = ((const int64_t *)outside[it->outside[1]])[r];
                        memcpy((float *)outside[it->outside[0]] + (h * sizes[it->slots] + slot) * it->inner,
                               x + r * stride + h * it->inner, it->inner * sizeof(float));
                    }
                break;
            case ATTEND:
                attend(it, x, out, outside[it->outside[0]], outside[it->outside[1]],
                       it->outside[2] < 0 ? 0 : outside[it->outside[2]], sizes[it->slots],
                       it->outside[2] >= 0 && sizes[it->bias_heads] > 1, it->outside[2] >= 0 && sizes[it->bias_rows] > 1,
                       rows, scratch, thread, threads);
                break;
            case ADD: case MUL: case SCALE:
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t i = first; i < end; i++) {
                        float v = x[r * stride + i];
                        v = it->op == SCALE ? v * (float)it->scale
                            : it->op == ADD ? v + y[r * it->y.stride + i] : v * y[r * it->y.stride + i];
                        out[r * it->out.stride + i] = rounded(v, s);
                    }
                break;
            default:
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t i = first; i < end; i++)
                        out[r * it->out.stride + i] = rounded(activated(x[r * stride + i], it->op), s);
            }
            if (it->barrier) {
                #pragma omp barrier
            }
        }
    }
}
