/* A linear map with what is fused into it: the norm before it, its bias, activation and a sum after it. */

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

/* v sigmoid(v), or GELU by tanh, which is v sigmoid(2 u); with `is_short` rounded to bf16. */
static inline vec gated(vec v, int64_t kind, int64_t is_short) {
#ifdef __AVX512F__
    if (is_short && kind == SILU) return shortened(v / (1.0f + power_of_two(v * -1.44269504f)));
#endif
    vec made = v * sigmoid(kind == SILU ? v : 1.5957691216f * (v + 0.044715f * v * v * v));
    return is_short ? shortened(made) : made;
}

static void activate_all(const float *v, float *out, int64_t count, int64_t kind, int64_t is_short) {
    int64_t i = 0;
    if (kind == SILU || kind == GELU_TANH) {
        for (; i + LANES <= count; i += LANES) *(vec *)(out + i) = gated(*(const vec *)(v + i), kind, is_short);
        float left[LANES] = {0};
        memcpy(left, v + i, (count - i) * sizeof(float));
        *(vec *)left = gated(*(vec *)left, kind, is_short);
        memcpy(out + i, left, (count - i) * sizeof(float));
    } else for (; i < count; i++) out[i] = rounded(activated(v[i], kind), is_short);
}

/* Column `number` of a row, past its last one of `more`, or minus infinity if there is none; ~number: its negative. */
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

/* The sum of the numbers less `mean`, or of their squares: in four vectors, none of which waits for another. */
static inline float sum_around(const float *x, int64_t width, float mean, const int is_squared) {
    vec sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        UNROLLED for (int j = 0; j < 4; j++) {
            vec v = *(const vec *)(x + i + j * LANES) - mean;
            sum[j] = is_squared ? add_products(sum[j], v, v) : sum[j] + v;
        }
    float total = sum_of_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (const float *at = x + i; at < x + width; at++) total += is_squared ? (*at - mean) * (*at - mean) : *at - mean;
    return total;
}

/* Root mean square norm, or with `centred` layer norm, of rows: in bf16 to `shorts`, otherwise to `out`. Its weights
   are fp32, whatever the model computes in. Some rows' sums come first, since a row waits long for its own. */
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
        if (it->activation >= 0) activate_all(sums, sums, count, it->activation, s);
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
    const int in_digits = it->level_bits && TAKES_DIGITS;
    float sums[2][((int)MOST_TILED > (int)MOST_SUMMED ? MOST_TILED : MOST_SUMMED) * BLOCK] __attribute__((aligned(BYTES)));
    if (first == end) return;
    if (it->normed || size == 2 || even > k || in_digits) { /* as the products read it; each thread for itself, which is cheaper than to wait */
        if (it->normed) norm_rows(it, x, x_stride, scratch, size == 2 ? (uint16_t *)scratch : 0, even, k, rows);
        else for (int64_t r = 0; r < rows; r++)
            if (size == 2) take_short(x + r * x_stride, (uint16_t *)scratch + r * even, k);
            else memcpy(scratch + r * even, x + r * x_stride, k * sizeof(float));
        if (even > k)
            for (int64_t r = 0; r < rows; r++) memset((char *)scratch + (r * even + k) * size, 0, (even - k) * size);
        if (in_digits) take_rows_apart(scratch, even, even / GROUP, rows, digits_of(it), bits_of(it));
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
                product_of(it, some)(numbers + r * stride * size, stride, weight, even, sums[turn]);
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
