/* Softmax attention, row by row. */

/* One row of a query head: its query, and the weight of each slot that it sees, in order. Slots in a block that its
   tile does not see as a whole also have their number. */
typedef struct { const float *query, *added; float *weights, *out; int32_t *seen; int64_t count, at; } QueryRow;

/* A tile has up to MOST_QUERY_ROWS rows that read the same keys and values, by blocks of SLOTS. Two or four rows share each load
   of a key or a value, and the others find NEAR_SLOTS of them in the cache nearby. */
enum { SLOTS = 16, NEAR_SLOTS = 64, MOST_QUERY_ROWS = 8 };
#if defined(__AVX512F__) || defined(__aarch64__) /* 32 registers */
enum { OF_ONE = 8, OF_TWO = 8, OF_FOUR = 4, MOST_SUMS = 16 }; /* keys, or vectors of a value, that so many rows read at once */
#else
enum { OF_ONE = 8, OF_TWO = 4, OF_FOUR = 2, MOST_SUMS = 8 };
#endif

/* To the weights of `rows` rows from their place `at` on: the products of the queries [D] with `count` keys [D], `stride`
   floats from slot to slot, times `scale`. The keys are those in the slots `seen`, or the first ones. The sums of a
   product's lanes are added up for all products with `some` keys at once; a product is the same in any company. */
INLINED scores(const int rows, const int some, const QueryRow *of, const float *restrict keys, int64_t stride,
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
                UNROLLED for (int r = 0; r < rows; r++) sum[r * some + k] = add_products(sum[r * some + k], *(const vec *)(of[r].query + i), read);
            }
        if (i < d)
            UNROLLED for (int k = 0; k < some; k++) {
                vec read = last_channels(key[k] + i, d - i);
                UNROLLED for (int r = 0; r < rows; r++) sum[r * some + k] = add_products(sum[r * some + k], last_channels(of[r].query + i, d - i), read);
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
INLINED mix_some(const int rows, const int parts, const QueryRow *to, const float *restrict value, int64_t stride,
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
            UNROLLED for (int r = 0; r < rows; r++) sum[r * parts + j] = add_product(sum[r * parts + j], read, weights[r][c]);
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int j = 0; j < parts; j++) *(vec *)(to[r].out + i + j * LANES) = sum[r * parts + j];
}

INLINED mix(const int rows, const int most, const QueryRow *to, const float *restrict value, int64_t stride,
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
                sum = add_product(sum, last_channels(value + (seen ? seen[c] : c) * stride + i, d - i), to[r].weights[to[r].at + c]);
            memcpy(to[r].out + i, &sum, (d - i) * sizeof(float));
        }
}

/* How the rows of a tile see a block: each its own slots of it, all the same, or all of it as a whole. */
enum { OWN, SAME, WHOLE };

/* The slots that each row of a tile sees, with what is added to their scores, and to `sight` how they see each block. Rows
   with one bias see the same. */
static void gather(QueryRow *rows, int64_t n, int64_t slots, char *sight) {
    int is_one = 1;
    for (int64_t r = 1; r < n; r++) is_one &= rows[r].added == rows[0].added;
    for (int64_t c = 0; c < slots; c += SLOTS) { /* most often all of a block is visible, or nothing */
        int64_t end = c + SLOTS < slots ? c + SLOTS : slots, most = 0, least = SLOTS;
        for (QueryRow *row = rows; row < rows + n; row++) {
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
        if (most) for (QueryRow *row = rows; row < rows + n; row++) {
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
INLINED read_same(QueryRow *rows, int64_t n, const float *read, int64_t stride, const int32_t *seen, int64_t count, int64_t d,
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
INLINED read_slots(QueryRow *rows, int64_t n, int64_t slots, const char *sight, const float *from, int64_t stride,
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

/* Scores become weights, which are not divided by their sum; returns that, with the weight of a sink if there is one. There
   is room for a vector behind the last score. */
static inline float softmax_unnormalised(float *v, int64_t count, const float *sink) {
    vec most = (vec){0} - INFINITY, total = {0};
    *(vec *)(v + count) = most;
    for (int64_t c = 0; c < count; c += LANES) most = larger(most, *(const vec *)(v + c));
    float highest = most_of_lanes(most);
    if (sink && *sink > highest) highest = *sink;
    for (int64_t c = 0; c < count; c += LANES) total += *(vec *)(v + c) = exp_below(*(const vec *)(v + c) - highest);
    return sum_of_lanes(total) + (sink ? exp_below((vec){0} + (*sink - highest))[0] : 0);
}

/* Softmax attention of the query heads' rows, over the slots that the bias leaves visible. These are summed in order,
   as if they were next to each other, so that a sum does not depend on the slots between them, nor on the other rows of
   its tile: a path of a tree is summed as a chain is, and a text among others as it is by itself. Each text has its own
   keys, values and, with more than one at `bias_texts`, bias. Keys and values lie in caches, or belong to the text's
   rows. */
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
        n = at_once(n, MOST_QUERY_ROWS);
        QueryRow rows[MOST_QUERY_ROWS];
        char *sight = (char *)(scratch + 2 * n * room);
        for (int64_t i = 0; i < n; i++) {
            int64_t h = key_head * group + (at + i) / tokens, token = (at + i) % tokens, r = first + text * tokens + token;
            rows[i] = (QueryRow){.query = q + r * it->x.stride + h * d, .out = out + r * it->out.stride + h * d};
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
        float totals[MOST_QUERY_ROWS] = {0};
        for (int64_t i = 0; i < n; i++) {
            /* a sink takes part in the softmax, and mixes nothing in */
            const float *sink = it->bias ? (const float *)it->bias + key_head * group + (at + i) / tokens : 0;
            totals[i] = softmax_unnormalised(rows[i].weights, rows[i].count, sink);
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
