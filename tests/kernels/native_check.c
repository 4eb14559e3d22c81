/* The kernels against plain loops, for sizes that fill no vector and no tile; built with a sanitizer. Exit code 1: a
   difference, which is printed. */
#include "native_check.h"

static float by_libm(float v, int64_t kind) {
    double u = 0.79788456080286536 * (v + 0.044715 * v * v * (double)v);
    return kind == SILU ? v / (1 + exp(-(double)v)) : kind == GELU_TANH ? 0.5 * v * (1 + tanh(u)) : activated(v, kind);
}

static void check_activation(int64_t kind, int64_t s) {
    for (int64_t n = 1; n < 40; n++) {
        float *x = floats(n, 0), *out = floats(n, 0);
        for (int64_t i = 0; i < n; i++) x[i] *= i % 3 == 0 ? 1 : i % 3 == 1 ? 12 : 200;
        activate_all(x, out, n, kind, s);
        for (int64_t i = 0; i < n; i++) compare("activation", out[i], by_libm(x[i], kind), s ? 4e-3f : 1e-6f, i, kind);
        free(x), free(out);
    }
    float odd[3] = {NAN, INFINITY, -100}, out[3];
    activate_all(odd, out, 3, kind, s);
    if (out[0] == out[0] || (kind != TANH && out[1] != INFINITY)) failed++, printf("activation %ld: NaN, infinity\n", (long)kind);
}

/* A positive number of fp16, some of them subnormal, and what it is. */
static uint16_t any_half(float *is) {
    int exponent = rand() % 8 > 0 ? 4 + rand() % 8 : 0, rest = rand() % 1024;
    *is = exponent ? ldexpf(1024 + rest, exponent - 25) : ldexpf(rest, -24);
    return exponent << 10 | rest;
}

/* Random levels and scales, packed; their products in `w`. */
static void *levels_of(float *w, int64_t n, int64_t k, int64_t level_bits) {
    int64_t groups = groups_of(k), size = level_bits & ~(int64_t)HALF_SCALES;
    int8_t *levels = malloc(n * k);
    uint16_t *scales = malloc(n * groups * 2);
    float *of = malloc(n * groups * sizeof(float));
    void *packed = malloc(levels_size(n, k, size));
    for (int64_t i = 0; i < n * groups; i++) {
        if (level_bits >= HALF_SCALES) scales[i] = any_half(of + i);
        else of[i] = wide(scales[i] = narrow(noise() / (1 << (size - 1))));
    }
    for (int64_t i = 0; i < n * k; i++) {
        levels[i] = rand() % (1 << size) - (1 << (size - 1));
        w[i] = levels[i] * of[i / k * groups + i % k / GROUP];
    }
    pack_levels(levels, scales, packed, n, k, size);
    free(levels), free(scales), free(of);
    return packed;
}

/* The least that a thread may be given for the inputs of a map. */
static float *room_for(const Instruction *it, int64_t rows) {
    int64_t is_short = it->short_floats && SHORT_STEP == 2 && !it->level_bits;
    return floats(inputs_of(it) * rows / (is_short ? 2 : 1), 0);
}

static void check_linear(int64_t rows, int64_t k, int64_t n, int64_t s, int64_t activation, int has_bias, int has_more,
                         int64_t level_bits) {
    float *x = floats(rows * k, s), *w = floats(n * k, s), *b = floats(n, s), *more = floats(rows * n, s);
    void *short_w = weights_of(w, n * k, s), *short_b = weights_of(b, n, s);
    void *packed = level_bits ? levels_of(w, n, k, level_bits) : malloc(packed_size(n, k) * (s ? 2 : 4));
    if (!level_bits) pack(short_w, packed, n, k, s);
    Instruction it;
    memset(&it, 0, sizeof it);
    it.inner = k, it.level_bits = level_bits, it.short_floats = s;
    float *out = floats(rows * n, 0), *scratch = room_for(&it, rows);
    it.op = LINEAR, it.short_floats = s, it.inner = k, it.width = n, it.weight = packed, it.activation = activation;
    it.out.stride = it.y.stride = n, it.bias = has_bias ? short_b : 0;
    if (s && has_tiles) shape_tiles(rows);
    for (int thread = 0; thread < 3; thread++) linear(&it, x, k, out, has_more ? more : 0, rows, scratch, thread, 3);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) {
            double sum = has_bias ? b[j] : 0;
            for (int64_t i = 0; i < k; i++) sum += (double)x[r * k + i] * w[j * k + i];
            float wanted = rounded((float)sum, s);
            if (activation >= 0) wanted = rounded(by_libm(wanted, activation), s);
            if (has_more) wanted = rounded(wanted + more[r * n + j], s);
            compare("linear", out[r * n + j], wanted, s ? 2e-2f : 1e-5f, r, j);
        }
    float *alone = floats(n, 0); /* the last row, read alone: the same to the bit */
    int64_t last = rows - 1;
    if (s && has_tiles) shape_tiles(1);
    linear(&it, x + last * k, k, alone, has_more ? more + last * n : 0, 1, scratch, 0, 1);
    if (memcmp(alone, out + last * n, n * sizeof(float))) failed++, printf("linear: row %ld differs alone\n", (long)last);
    if (s && has_tiles) release_tiles();
    free(x), free(w), free(b), free(more), free(short_w), free(short_b), free(packed), free(out), free(scratch), free(alone);
}

static void check_maps(int64_t rows) {
    for (int64_t s = 0; s < 2; s++) {
        check_linear(rows, 21, 75, s, -1, 0, 0, 0);
        check_linear(rows, 64, 160, s, RELU, 0, 1, 0);
        check_linear(rows, 21, 400, s, -1, 0, 0, 0); /* each of three threads has a tile of four blocks */
        check_linear(rows, 33, 31, s, GELU, 1, 1, 0);
        check_linear(rows, 33, 31, s, SILU, 1, 0, 0);
    }
}

static void check_levels(int64_t rows) {
    for (int64_t s = 0; s < 2; s++)
        for (int64_t size = 4; size <= 8; size += 4)
            for (int64_t half = 0; half <= HALF_SCALES; half += HALF_SCALES) {
                check_linear(rows, 21, 75, s, -1, 0, 0, size | half);
                check_linear(rows, 64, 160, s, RELU, 0, 1, size | half);
                check_linear(rows, 97, 31, s, GELU, 1, 1, size | half);
                check_linear(rows, 33, 40, s, SILU, 1, 0, size | half);
            }
}

/* Inputs of any size next to each other; a row with a NaN or an infinity has no result that is a number, others have. */
static void check_inputs_of_levels(int64_t s, int64_t level_bits) {
    enum { ROWS = 6, K = 96, N = 40 };
    float *x = floats(ROWS * K, 0), *w = floats(N * K, 0), *out = floats(ROWS * N, 0);
    const float sizes[ROWS] = {1, 1e-12f, 1e25f, 0, 1, 1};
    for (int64_t i = 0; i < ROWS * K; i++) x[i] = rounded(x[i] * sizes[i / K] * (i % 3 ? 1 : 1e-3f), s);
    x[4 * K + 50] = NAN, x[5 * K + 95] = -INFINITY;
    void *packed = levels_of(w, N, K, level_bits);
    Instruction it;
    memset(&it, 0, sizeof it);
    it.op = LINEAR, it.short_floats = s, it.inner = K, it.width = it.out.stride = N, it.weight = packed, it.activation = -1;
    it.level_bits = level_bits;
    float *scratch = room_for(&it, ROWS);
    linear(&it, x, K, out, 0, ROWS, scratch, 0, 1);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t j = 0; j < N; j++) {
            double sum = 0, all = 1e-30;
            for (int64_t i = 0; i < K; i++) sum += (double)x[r * K + i] * w[j * K + i], all += fabs((double)x[r * K + i] * w[j * K + i]);
            if (r < 4) compare("levels, inputs", (float)(out[r * N + j] / all), (float)(sum / all), s ? 5e-3f : 1e-6f, r, j);
            else if (out[r * N + j] - out[r * N + j] == 0) failed++, printf("levels: a number of no number\n");
        }
    free(x), free(w), free(out), free(packed), free(scratch);
}

/* A norm fused into a map is the norm and then the map, to the bit. */
static __attribute__((noinline)) void check_normed(int64_t rows, int64_t k, int64_t n, int64_t s, int64_t centred) {
    float *x = floats(rows * k, s), *w = floats(n * k, s), *by = floats(k, 0), *normed = floats(rows * k, 0);
    void *short_w = weights_of(w, n * k, s), *packed = malloc(packed_size(n, k) * (s ? 2 : 4));
    pack(short_w, packed, n, k, s);
    Instruction it;
    memset(&it, 0, sizeof it);
    it.op = LINEAR, it.short_floats = s, it.inner = k, it.width = it.out.stride = n, it.weight = packed, it.activation = -1;
    it.norm_weight = by, it.epsilon = 1e-6, it.centred = centred;
    float *shift = floats(k, 0), *scratch = room_for(&it, rows), *once = floats(rows * n, 0), *twice = floats(rows * n, 0);
    if (centred) it.norm_bias = shift;
    else if (k % 2) it.norm_weight = 0;
    for (int64_t r = 0; r < rows; r++) norm_rows(&it, x + r * k, k, normed + r * k, 0, k, k, 1); /* as a norm alone is run */
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, square = 0;
        for (int64_t i = 0; i < k && centred; i++) mean += x[r * k + i] / (double)k;
        for (int64_t i = 0; i < k; i++) square += (x[r * k + i] - mean) * (x[r * k + i] - mean) / k;
        for (int64_t i = 0; i < k; i++) {
            double scaled = (x[r * k + i] - mean) / sqrt(square + 1e-6) * (it.norm_weight ? by[i] : 1);
            float wanted = rounded((float)(scaled + (it.norm_bias ? shift[i] : 0)), s);
            compare("norm", normed[r * k + i], wanted, s ? 2e-2f : 1e-5f, r, i);
        }
    }
    if (s && has_tiles) shape_tiles(rows);
    linear(&it, normed, k, twice, 0, rows, scratch, 0, 1);
    it.normed = 1;
    linear(&it, x, k, once, 0, rows, scratch, 0, 1);
    if (memcmp(once, twice, rows * n * sizeof(float))) failed++, printf("norm: differs where it is fused\n");
    if (s && has_tiles) release_tiles();
    free(x), free(w), free(by), free(normed), free(short_w), free(packed), free(scratch), free(once), free(twice), free(shift);
}

/* Where keys and values lie, and whether a part's rows share a bias; without one a head has a sink. */
enum { PARTS = 3, IN_CACHES = 0, ONE_BIAS = 1, NO_BIAS = 2, OF_ROWS = 3 };

/* Parts of `rows` rows, one more in each: each has its own slots, keys, values and bias. */
static void check_attention(int64_t rows, int64_t heads, int64_t key_heads, int64_t d, int64_t slots, int kind) {
    int64_t all = 0, first = 0, sizes[PARTS][4], stride = key_heads * d + 5;
    Part parts[PARTS];
    void *read[PARTS][3];
    for (int p = 0; p < PARTS; all += parts[p].rows, p++) {
        int64_t count = rows + p, own = kind == OF_ROWS ? count : slots + 3 * p;
        float *bias = floats(count * own, 0);
        for (int64_t i = 0; i < count * own; i++) /* some blocks are visible as a whole */
            if (kind == NO_BIAS) bias[i] = 0;
            else if (i % own % 100 > 33 && rand() % 3 == 0) bias[i] = -3.3e38f;
        read[p][0] = floats(key_heads * own * d, 0), read[p][1] = floats(key_heads * own * d, 0), read[p][2] = bias;
        sizes[p][0] = own, sizes[p][1] = sizes[p][2] = 1, sizes[p][3] = kind == ONE_BIAS ? 1 : count;
        parts[p] = (Part){read[p], sizes[p], 1, count};
    }
    float *q = floats(all * heads * d, 0), *out = floats(all * heads * d, 0);
    float *keys = floats(all * stride, 0), *values = floats(all * stride, 0);
    float *scratch = floats(17 * ((kind == OF_ROWS ? rows : slots) + 3 * PARTS + SLOTS), 0);
    Instruction it;
    memset(&it, 0, sizeof it);
    it.inner = d, it.heads = heads, it.key_heads = key_heads, it.scale = 0.3, it.x.stride = it.out.stride = heads * d;
    it.bias_texts = 1, it.bias_heads = 2, it.bias_rows = 3;
    for (int i = 0; i < 4; i++) it.outside[i] = i;
    it.y.stride = it.z.stride = stride;
    if (kind == OF_ROWS) it.slots = it.outside[0] = it.outside[1] = -1;
    float *sink = floats(heads, 0);
    if (kind == NO_BIAS) it.outside[2] = -1, it.bias = sink;
    Step step = {&it, 1, parts, PARTS, all};
    for (int thread = 0; thread < 2; thread++) attend(&it, &step, q, keys, values, out, scratch, thread, 2);
    float *alone = floats(all * heads * d, 0);
    for (int64_t thread = 0; thread < all * heads; thread++)
        attend(&it, &step, q, keys, values, alone, scratch, thread, all * heads);
    if (memcmp(out, alone, all * heads * d * sizeof(float))) failed++, printf("attention: %ld rows differ from one\n", (long)rows);
    float *query = q, *found = out;
    for (int p = 0; p < PARTS; first += parts[p].rows, p++)
        for (int64_t r = 0; r < parts[p].rows; r++, query += heads * d, found += heads * d)
            for (int64_t h = 0; h < heads; h++) {
                int64_t own = sizes[p][0], key_head = h / (heads / key_heads), apart = kind == OF_ROWS ? stride : d;
                int64_t from = kind == OF_ROWS ? first * stride + key_head * d : key_head * own * d;
                const float *key = (kind == OF_ROWS ? keys : (float *)read[p][0]) + from;
                const float *value = (kind == OF_ROWS ? values : (float *)read[p][1]) + from;
                const float *bias = (float *)read[p][2] + (kind == ONE_BIAS ? 0 : r * own);
                double total = kind == NO_BIAS ? exp(sink[h]) : 0, mixed[64] = {0};
                for (int64_t c = 0; c < own; c++) {
                    if (bias[c] < -1e30f) continue;
                    double dot = 0;
                    for (int64_t i = 0; i < d; i++) dot += (double)query[h * d + i] * key[c * apart + i];
                    double weight = exp(dot * 0.3 + bias[c]);
                    total += weight;
                    for (int64_t i = 0; i < d; i++) mixed[i] += weight * value[c * apart + i];
                }
                for (int64_t i = 0; i < d; i++)
                    compare("attention", found[h * d + i], (float)(mixed[i] / total), 1e-4f, r, h);
            }
    for (int p = 0; p < PARTS; p++) for (int i = 0; i < 3; i++) free(read[p][i]);
    free(q), free(out), free(alone), free(scratch), free(keys), free(values), free(sink);
}

/* Run what `step` reads block by block, as so many threads do in turn. */
static void read_in_blocks(const Instruction *it, const Step *step, const float *q, float *out, float *scratch, float *shared, int threads) {
    int64_t claimed = 0;
    for (int thread = 0; thread < threads; thread++) attend_blocks(it, step, q, out, scratch, shared, &claimed, thread, threads);
    for (int thread = 0; thread < threads; thread++) add_blocks(it, step, q, out, scratch, shared, thread, threads);
}

/* Attention block by block over caches in fp32 or, with `s`, bf16: against plain loops; the same to the bit on more threads,
   of each row alone, and of a row that sees as many slots without others between them. */
static void check_blocks(int64_t rows, int64_t heads, int64_t key_heads, int64_t d, int64_t slots, int kind, int64_t s) {
    int64_t sizes[4] = {slots, 1, 1, kind == ONE_BIAS ? 1 : rows}, numbers = key_heads * slots * d, width = heads * d;
    float *keys = floats(numbers, s), *values = floats(numbers, s), *q = floats(rows * width, s), *bias = floats(rows * slots, 0);
    for (int64_t i = 0; i < rows * slots; i++)
        if (kind == NO_BIAS) bias[i] = 0;
        else if (kind == ONE_BIAS ? i % slots % 100 > 33 && rand() % 3 == 0 : i % slots > slots - rows + i / slots) bias[i] = -3.3e38f;
    void *caches[2] = {weights_of(keys, numbers, s), weights_of(values, numbers, s)}, *read[3] = {caches[0], caches[1], bias};
    float *sink = floats(heads, 0), *out = floats(rows * width, 0), *other = floats(rows * width, 0);
    float *scratch = floats(attend_room(d), 0), *shared = floats(shared_room(heads, key_heads, d, rows, slots) + 1, 0);
    Instruction it;
    memset(&it, 0, sizeof it);
    it.inner = d, it.heads = heads, it.key_heads = key_heads, it.scale = 0.3, it.x.stride = it.out.stride = width;
    it.bias_texts = 1, it.bias_heads = 2, it.bias_rows = 3, it.short_cache = s;
    for (int i = 0; i < 4; i++) it.outside[i] = i;
    if (kind == NO_BIAS) it.outside[2] = -1, it.bias = sink;
    Part part = {read, sizes, 1, rows};
    Step step = {&it, 1, &part, 1, rows};
    it.slots = 0;
    read_in_blocks(&it, &step, q, out, scratch, shared, 1);
    for (int threads = 2; threads < 6; threads += 3) {
        read_in_blocks(&it, &step, q, other, scratch, shared, threads);
        if (memcmp(out, other, rows * width * sizeof(float))) failed++, printf("blocks: %d threads differ\n", threads);
    }
    for (int64_t r = 0; r < rows; r++) { /* alone, over the slots that it sees and no others */
        int64_t seen = 0, from = kind == ONE_BIAS ? 0 : r * slots;
        float *own[2] = {floats(numbers, 0), floats(numbers, 0)}, *none = floats(slots, 0);
        for (int64_t c = 0; c < slots; c++) seen += bias[from + c] >= -1e30f;
        for (int64_t g = 0; g < key_heads; g++)
            for (int64_t c = 0, to = 0; c < slots; c++)
                if (bias[from + c] >= -1e30f) {
                    for (int i = 0; i < 2; i++) memcpy(own[i] + (g * seen + to) * d, (i ? values : keys) + (g * slots + c) * d, d * sizeof(float));
                    none[to++] = bias[from + c];
                }
        void *packed[3] = {weights_of(own[0], key_heads * seen * d, s), weights_of(own[1], key_heads * seen * d, s), none};
        int64_t less[4] = {seen, 1, 1, 1};
        Part alone = {packed, less, 1, 1};
        Step one = {&it, 1, &alone, 1, 1};
        read_in_blocks(&it, &one, q + r * width, other, scratch, shared, 1);
        if (memcmp(out + r * width, other, width * sizeof(float))) failed++, printf("blocks: row %ld of %ld differs alone\n", (long)r, (long)rows);
        for (int64_t h = 0; h < heads; h++) {
            int64_t g = h / (heads / key_heads);
            double total = kind == NO_BIAS ? exp(sink[h]) : 0, mixed[128] = {0};
            for (int64_t c = 0; c < slots; c++) {
                if (bias[from + c] < -1e30f) continue;
                double dot = 0;
                for (int64_t i = 0; i < d; i++) dot += (double)q[r * width + h * d + i] * keys[(g * slots + c) * d + i];
                double weight = exp(dot * 0.3 + bias[from + c]);
                total += weight;
                for (int64_t i = 0; i < d; i++) mixed[i] += weight * values[(g * slots + c) * d + i];
            }
            for (int64_t i = 0; i < d; i++) compare("blocks", out[r * width + h * d + i], (float)(mixed[i] / total), s ? 1e-2f : 1e-4f, r, h);
        }
        for (int i = 0; i < 2; i++) free(own[i]), free(packed[i]);
        free(none);
    }
    free(keys), free(values), free(q), free(bias), free(caches[0]), free(caches[1]), free(sink), free(out), free(other), free(scratch), free(shared);
}

/* Sums of a rotation against plain loops: columns turned by halves of a head and one by one. */
static void check_rotation(int64_t rows, int64_t heads, int64_t d, int64_t s) {
    int64_t width = heads * d, *columns = malloc(width * sizeof(int64_t));
    float *x = floats(rows * width, s), *y = floats(rows * d, s), *z = floats(rows * d, s), *out = floats(rows * width, 0);
    for (int64_t i = 0; i < width; i++)
        columns[i] = heads % 2 ? (i % d < d / 2 ? ~(i + d / 2) : i - d / 2) : i % 2 ? i - 1 : ~(i + 1);
    Instruction it;
    memset(&it, 0, sizeof it);
    it.period = d, it.weight = columns, it.short_floats = s, it.x.stride = it.out.stride = width, it.y.stride = it.z.stride = d;
    rotate(&it, x, y, z, out, rows, 0, width / 3), rotate(&it, x, y, z, out, rows, width / 3, width);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            float straight = rounded(x[r * width + i] * y[r * d + i % d], s), turned = picked(x + r * width, 0, columns[i], width);
            compare("rotation", out[r * width + i], rounded(straight + rounded(turned * z[r * d + i % d], s), s), s ? 1e-2f : 1e-6f, r, i);
        }
    free(columns), free(x), free(y), free(z), free(out);
}

/* Rows loaded, written to slots of their part's buffer, and stored, by parts of 1, 2, ... rows. */
static void check_parts(int64_t s, int64_t heads, int64_t d) {
    int64_t width = heads * d, all = PARTS * (PARTS + 1) / 2, number[PARTS][PARTS], slots[PARTS];
    Part parts[PARTS];
    void *read[PARTS][4];
    Instruction program[3];
    memset(program, 0, sizeof program);
    int64_t ops[] = {LOAD, WRITE, STORE}, outside[] = {0, 1, 3};
    for (int i = 0; i < 3; i++) {
        program[i].op = ops[i], program[i].short_floats = s, program[i].width = program[i].period = width, program[i].barrier = 1;
        program[i].out.stride = program[i].x.stride = width, program[i].outside[0] = outside[i];
        program[i].heads = heads, program[i].inner = d;
    }
    program[1].outside[1] = 2;
    for (int p = 0; p < PARTS; p++) {
        slots[p] = 5 + p;
        for (int r = 0; r <= p; r++) number[p][r] = slots[p] - 1 - r;
        float *rows = floats((p + 1) * width, s);
        read[p][0] = weights_of(rows, (p + 1) * width, s), read[p][1] = floats(heads * slots[p] * d, 0);
        read[p][2] = number[p], read[p][3] = malloc((p + 1) * width * (s ? 2 : 4));
        parts[p] = (Part){read[p], slots + p, 1, p + 1};
        free(rows);
    }
    float *arena = floats(all * width, 0), *scratch = floats(16, 0);
    Step step = {program, 3, parts, PARTS, all};
    Barrier barrier = {0};
    run_step(&step, arena, scratch, scratch, &barrier, 0, 1);
    for (int p = 0; p < PARTS; p++) {
        if (memcmp(read[p][0], read[p][3], (p + 1) * width * (s ? 2 : 4))) failed++, printf("part %d is not stored\n", p);
        for (int64_t r = 0; r <= p; r++)
            for (int64_t i = 0; i < width; i++) {
                float wanted = weight_at(read[p][0], r * width + i, s);
                compare("cache", ((float *)read[p][1])[(i / d * slots[p] + number[p][r]) * d + i % d], wanted, 0, p, r);
            }
        free(read[p][0]), free(read[p][1]), free(read[p][3]);
    }
    free(arena), free(scratch);
}

static void check_choice(int64_t n, int64_t s) {
    float *logits = floats(n, s), *row = floats(n, 0);
    void *held = weights_of(logits, n, s);
    int64_t best = 0, draws[300] = {0};
    for (int64_t i = 1; i < n; i++) if (logits[i] > logits[best]) best = i;
    double uniform;
    Choice choice = {held, s, n, n, {0, 1, 0}, &uniform, row, 0, 0, 0};
    if (choose(&choice, 0, 0) != best) failed++, printf("argmax of %ld\n", (long)n);
    choice.how.temperature = 0.7;
    enum { DRAWS = 20000 };
    for (int i = 0; i < DRAWS; i++) { /* evenly spread numbers: the share of each token is its probability */
        uniform = (i + 0.5) / DRAWS;
        int64_t token = choose(&choice, 0, 0);
        if (token < 0 || token >= n) { failed++; break; }
        draws[token]++;
    }
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += exp(logits[i] / 0.7);
    for (int64_t i = 0; i < n; i++) {
        compare("probability", row[i], (float)(exp(logits[i] / 0.7) / total), 1e-5f, i, n);
        compare("share", (float)draws[i] / DRAWS, row[i], 1e-3f, i, n);
    }
    free(logits), free(row), free(held);
}

/* The smallest row whose draws were wrong: of a sum whose count it knew GCC 12 made, for SVE, a read of lanes before they were
   written, so that each draw was the last token. */
static __attribute__((noinline)) int64_t drawn_of_seven(const float *v, double uniform) { return drawn_from(v, 7, uniform); }
static void check_smallest_draw(void) {
    const float even[7] = {1, 1, 1, 1, 1, 1, 1};
    for (int64_t i = 0; i < 7; i++) compare("draw of seven", (float)drawn_of_seven(even, (i + 0.5) / 7), (float)i, 0, i, 7);
}

static int is_before(const float *v, int64_t a, int64_t b) { return v[a] > v[b] || (v[a] == v[b] && a < b); }

/* Top-k and top-p against rows sorted by insertion; logits of few values, so that many are equal. */
static void check_kept(int64_t n, int64_t s, int64_t top_k, float top_p) {
    float *logits = floats(n, s), *row = floats(n, 0), *plain = floats(n, 0);
    for (int64_t i = 0; i < n; i++) logits[i] = i % 7 == 6 ? -INFINITY : roundf(logits[i] * 8) / 2;
    void *held = weights_of(logits, n, s);
    int64_t *order = malloc(n * sizeof(int64_t)), kept = n;
    double total = 0, before = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = i;
        for (; j > 0 && is_before(logits, i, order[j - 1]); j--) order[j] = order[j - 1];
        order[j] = i;
    }
    if (top_k > 0 && top_k < n) for (kept = top_k; kept < n && logits[order[kept]] == logits[order[top_k - 1]];) kept++;
    Sampling off = {0.5, 1, top_k}, how = {0.5, top_p, top_k};
    standardise(held, s, n, plain, 1, n, &off, 1), standardise(held, s, n, row, 1, n, &how, 1);
    for (int64_t i = 0; i < kept; i++) total += exp(2 * (double)logits[order[i]]);
    for (int64_t i = 0; i < n; i++)
        compare("top-k", plain[order[i]], i < kept ? (float)(exp(2 * (double)logits[order[i]]) / total) : 0, 1e-5f, i, n);
    total = 0;
    for (int64_t i = 0; i < n && (top_p >= 1 || before < top_p - 1e-6); i++) total = before += plain[order[i]], kept = i + 1;
    for (int64_t i = 0; i < n; i++) compare("top-p", row[order[i]], i < kept ? (float)(plain[order[i]] / total) : 0, 1e-5f, i, n);
    free(logits), free(row), free(plain), free(held), free(order);
}

static void check_verdict(int64_t n, int64_t count, int has_q) {
    float *p = floats((count + 1) * n, 0), *q = floats(count * n, 0), *room = floats(n, 0), uniforms[8];
    int64_t drafted[8], token, shares[300] = {0};
    enum { DRAWS = 20000 };
    double next = 0.5;
    Rule exact = {EXACT};
    Chain chain = {p, has_q ? q : 0, drafted, count, n, uniforms, &next, 1e-9, room};
    Sampling sharp = {0.3, 1, 0}, plain = {1, 1, 0};
    standardise(p, 0, n, p, count + 1, n, &sharp, 1), standardise(q, 0, n, q, count, n, &plain, 1);
    for (int64_t g = 0; g < count; g++) drafted[g] = rand() % n, uniforms[g] = g + 1 < count ? 0 : 1; /* the last fails: */
    const float *law = p + (count - 1) * n, *from = q + (count - 1) * n;
    while (has_q && law[drafted[count - 1]] >= from[drafted[count - 1]]) drafted[count - 1] = rand() % n;
    if (verify(&exact, &chain, &token) > count - 1) failed++;
    double total = 0, left[300];
    for (int64_t i = 0; i < n; i++) {
        double excess = has_q ? (double)law[i] - from[i] : i == drafted[count - 1] ? 0 : law[i];
        total += left[i] = excess > 0 ? excess : 0;
    }
    for (int i = 0; i < DRAWS; i++) {
        next = (i + 0.5) / DRAWS;
        int64_t accepted = verify(&exact, &chain, &token);
        if (accepted != count - 1 || token < 0 || token >= n) { failed++; break; }
        shares[token]++;
    }
    for (int64_t i = 0; i < n; i++) compare("residual", (float)shares[i] / DRAWS, (float)(left[i] / total), 1e-3f, i, n);
    uniforms[count - 1] = 0;
    if (verify(&exact, &chain, &token) != count) failed++;
    free(p), free(q), free(room);
}

int main(void) {
    int64_t kinds[] = {RELU, SILU, GELU, GELU_TANH, TANH};
    for (int i = 0; i < 5; i++) check_activation(kinds[i], 0), check_activation(kinds[i], 1);
    int with_tiles = has_tiles;
    check_smallest_draw();
    for (int64_t rows = 1; rows < 10; rows++) check_levels(rows);
    for (int64_t s = 0; s < 2; s++) check_inputs_of_levels(s, 8), check_inputs_of_levels(s, 4), check_inputs_of_levels(s, 4 | HALF_SCALES);
    for (int64_t rows = 1; rows < 70; rows += rows < 35 ? 1 : 6) check_maps(rows);
#ifdef TILES
    has_tiles = 0; /* as where the system does not permit them */
    for (int64_t rows = 1; rows < 20; rows++) check_maps(rows);
#endif
    for (int64_t rows = 1; rows < 6; rows++)
        for (int kind = IN_CACHES; kind <= NO_BIAS; kind++) {
            check_attention(rows, 4, 2, 64, 41, kind), check_attention(rows, 3, 3, 20, 7, kind), check_attention(rows, 2, 1, 33, 1, kind);
            check_attention(rows, 4, 2, 24, 190, kind), check_attention(rows, 6, 3, 56, 190, kind);
        }
    for (int64_t s = 0; s < 2; s++) {
        for (int64_t rows = 1; rows < 10; rows += rows < 3 ? 1 : 6)
            for (int kind = IN_CACHES; kind <= NO_BIAS; kind++) {
                check_blocks(rows, 6, 2, 64, 260 + rows, kind, s), check_blocks(rows, 2, 2, 20, 131 + rows, kind, s);
                check_blocks(rows, 4, 1, 33, 40 + rows, kind, s), check_blocks(rows, 3, 1, 80, 129 + rows, kind, s);
            }
        check_blocks(70, 4, 2, 16, 200, IN_CACHES, s); /* several tiles */
        check_blocks(2, 200, 1, 16, 140, IN_CACHES, s); /* more query heads than a tile has rows */
        for (int64_t heads = 1; heads < 4; heads++) check_rotation(3, heads, 64, s), check_rotation(2, heads, 20, s), check_rotation(1, heads, 6, s);
    }
    for (int64_t rows = 1; rows < 40; rows += rows < 5 ? 1 : 11)
        check_attention(rows, 4, 2, 64, 0, OF_ROWS), check_attention(rows, 3, 3, 20, 0, OF_ROWS), check_attention(rows, 2, 1, 33, 0, OF_ROWS);
    for (int64_t rows = 1; rows < 36; rows += rows < 9 ? 1 : 8)
        for (int64_t s = 0; s < 2; s++) check_normed(rows, 21, 75, s, 0), check_normed(rows, 256, 40, s, 1), check_normed(rows, 97, 33, s, 1), check_normed(rows, 7, 40, s, 0), check_normed(rows, 64, 9, s, 0);
    for (int64_t s = 0; s < 2; s++) check_parts(s, 2, 3), check_parts(s, 3, 16);
    for (int64_t s = 0; s < 2; s++) check_choice(7, s), check_choice(64, s), check_choice(300, s);
    int64_t ks[] = {0, 1, 3, 50, 299, 1000};
    float ps[] = {0.05f, 0.37f, 0.9f, 1};
    for (int64_t s = 0; s < 2; s++)
        for (int k = 0; k < 6; k++)
            for (int i = 0; i < 4; i++) check_kept(1, s, ks[k], ps[i]), check_kept(9, s, ks[k], ps[i]), check_kept(300, s, ks[k], ps[i]);
    for (int64_t count = 1; count < 4; count++)
        check_verdict(7, count, 0), check_verdict(65, count, 1), check_verdict(300, count, 1);
    const char *and_tiles = with_tiles ? " and tiles" : "";
    printf("%s: vectors of %d bytes%s, %d differences\n", failed ? "failed" : "passed", BYTES, and_tiles, failed);
    return failed > 0;
}
