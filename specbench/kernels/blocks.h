/* Attention over caches, block by block. */

/* Which slots a row sees: `count` of them, the first `whole` next to each other from slot `first` on; `is_plain`: nothing is
   added to their scores. The visible slots up to `slot` have the ranks up to `rank`. */
typedef struct { const float *added; int64_t first, whole, count, slot, rank, is_plain; } Sight;

/* Bit i: whether slot c + i is visible, of up to SLOTS slots. */
static inline uint32_t visible_of(const float *added, int64_t c, int64_t n) {
#ifdef __AVX512F__
    if (n == SLOTS) return _mm512_cmp_ps_mask(_mm512_loadu_ps(added + c), _mm512_set1_ps(-1e30f), _CMP_GE_OQ);
#endif
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) found |= (uint32_t)(added[c + i] >= -1e30f) << i;
    return found;
}

/* Bit i: whether something is added to the score of slot c + i. */
static inline uint32_t added_to(const float *added, int64_t c, int64_t n) {
#ifdef __AVX512F__
    if (n == SLOTS) return _mm512_cmp_ps_mask(_mm512_loadu_ps(added + c), _mm512_setzero_ps(), _CMP_NEQ_UQ);
#endif
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) found |= (uint32_t)(added[c + i] != 0) << i;
    return found;
}

static void look(Sight *of, int64_t slots) {
    *of = (Sight){.added = of->added, .whole = of->added ? -1 : slots, .count = of->added ? 0 : slots, .is_plain = 1};
    for (int64_t c = 0, is_begun = 0, is_gap = 0; of->added && c < slots; c += SLOTS) {
        int64_t n = slots - c < SLOTS ? slots - c : SLOTS;
        uint32_t visible = visible_of(of->added, c, n);
        of->is_plain &= !(visible & added_to(of->added, c, n));
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

/* Scores to weights, not divided by their sum, as they are mixed: times `scale`, with what is added to them; of the `n` first
   ones, and zeros up to `room`. Returns their highest score and their sum. */
typedef struct { float highest, sum; } Weighed;
static inline Weighed weigh_block(float *v, int64_t n, int64_t room, float scale, const float *added, const int32_t *seen, int is_row) {
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
    for (k = 0; k < end; k += LANES) total += *(vec *)(v + k) = exp_below(*(const vec *)(v + k) - highest);
    if (room > end) memset(v + end, 0, (room - end) * sizeof(float));
    return (Weighed){highest, sum_of_lanes(total)};
}

/* The same of rows that are mixed in pairs, whose weights become bf16: of up to MOST_WEIGHED rows that see `n` slots of a block,
   with what is added to the scores of each, or null. */
enum { MOST_WEIGHED = 4 };
#ifdef BF16_PAIRS
/* The scores from place k on, of which `left` are there, and minus infinity after the last. */
static inline vec scores_at(const float *v, const float *added, int64_t k, int64_t left, float scale) {
    vec score = *(const vec *)(v + k) * scale;
    if (left >= LANES) return added ? score + *(const vec *)(added + k) : score;
    if (added) score += last_channels(added + k, left);
    return (vec)_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)((1 << left) - 1), (__m512)score);
}

/* Each operation is done for all rows, since its result comes late. A row is added up as it is by itself. */
INLINED weigh_some(const int rows, float *v, int64_t n, float scale, const float *const *added, Weighed *of) {
    const float factor = 1.44269504f; /* exp(x) is 2 to the power of this times x */
    vec most[MOST_WEIGHED], total[MOST_WEIGHED];
    float highest[LANES], sums[LANES];
    UNROLLED for (int r = 0; r < rows; r++) most[r] = (vec){0} - INFINITY, total[r] = (vec){0};
    for (int64_t k = 0; k < n; k += LANES)
        UNROLLED for (int r = 0; r < rows; r++) most[r] = larger(most[r], scores_at(v + r * RANKS, added ? added[r] : 0, k, n - k, scale));
    UNROLLED for (int lanes = LANES, some = rows; lanes > 1; lanes /= 2, some = (some + 1) / 2)
        UNROLLED for (int r = 0; r < some; r += 2) {
            Neighbours both = neighbours(most[r], most[r + 1 < some ? r + 1 : r]);
            most[r / 2] = larger(both.first, both.second);
        }
    memcpy(highest, most, sizeof highest);
    for (int64_t k = 0; k < n; k += LANES)
        UNROLLED for (int r = 0; r < rows; r++) {
            vec score = scores_at(v + r * RANKS, added ? added[r] : 0, k, n - k, scale);
            vec weight = power_of_two((score - highest[r]) * factor);
            total[r] += weight;
            /* over scores that have been read */
            _mm256_storeu_si256((__m256i *)((uint16_t *)(v + r * RANKS) + k), (__m256i)_mm512_cvtneps_pbh((__m512)weight));
        }
    UNROLLED for (int lanes = LANES, some = rows; lanes > 1; lanes /= 2, some = (some + 1) / 2)
        UNROLLED for (int r = 0; r < some; r += 2) total[r / 2] = of_neighbours(total[r], total[r + 1 < some ? r + 1 : r]);
    memcpy(sums, total, sizeof sums);
    const int64_t end = (n + LANES - 1) / LANES * LANES;
    UNROLLED for (int r = 0; r < rows; r++) {
        of[r] = (Weighed){highest[r], sums[r]};
        if (end < RANKS) memset((uint16_t *)(v + r * RANKS) + end, 0, (RANKS - end) * sizeof(uint16_t));
    }
}

static __attribute__((noinline)) void weigh_pairs(int64_t rows, float *v, int64_t n, float scale, const float *const *added, Weighed *of) {
    switch (rows * 2 + (added != 0)) {
#define OF_WEIGHED(ROWS) case 2 * ROWS: weigh_some(ROWS, v, n, scale, 0, of); break; case 2 * ROWS + 1: weigh_some(ROWS, v, n, scale, added, of); break;
    OF_WEIGHED(1) OF_WEIGHED(2) OF_WEIGHED(3) OF_WEIGHED(4)
    }
}
#else
static inline void weigh_pairs(int64_t rows, float *v, int64_t n, float scale, const float *const *added, Weighed *of) {}
#endif

/* To the sums so far of `rows` rows [width], up to ADDED at once, the results of the next block of each; a row that sees none of
   it stays as it is. */
enum { ADDED = LANES / 2 };
static __attribute__((noinline)) void add_block(int64_t rows, float *highest, float *sum, float *out, const Weighed *of, const float *mixed,
                                                int64_t width) {
    float most[ADDED], factors[LANES];
    for (int64_t r = 0; r < ADDED; r++) {
        int sees = r < rows && of[r].highest > -INFINITY; /* else both may be -INFINITY, and their difference is no number */
        float before = sees ? highest[r] : 0, now = sees ? of[r].highest : -INFINITY;
        most[r] = now > before ? now : before;
        factors[r] = before - most[r], factors[ADDED + r] = now - most[r];
    }
    vec found;
    memcpy(&found, factors, sizeof found);
    found = exp_below(found);
    memcpy(factors, &found, sizeof found);
    for (int64_t r = 0; r < rows; r++, out += width, mixed += width) {
        if (!(of[r].highest > -INFINITY)) continue;
        float before = factors[r], now = factors[ADDED + r];
        for (int64_t c = 0; c < width; c += LANES) *(vec *)(out + c) = add_product(*(vec *)(out + c) * before, *(const vec *)(mixed + c), now);
        sum[r] = sum[r] * before + of[r].sum * now, highest[r] = most[r];
    }
}

/* Rows of one key head that read the same cache, and the room to read it. */
typedef struct {
    const Instruction *it; const void *keys, *values;
    int64_t rows, group; /* query heads of a token come one after another */
    float *query, *scores, *turned, *laid, *mixed, *out, *highest, *sum;
    Weighed *of; Sight *sights;
    int64_t known; /* rows that see what they saw in the tile before */
} Tile;

/* Floats that `attend_blocks` needs in a thread. */
int64_t attend_room(int64_t d) {
    int64_t width = filled_channels(d);
    return MOST_TILED_ROWS * (RANKS + 3 * width + 4 + (int64_t)(sizeof(Sight) / sizeof(float))) + (KEYS_AT_ONCE + VALUES_AT_ONCE) * width + 16 * LANES;
}

/* How many of the `n` slots of block `b` a row sees; none if it is not above 0. */
static inline int64_t own_ranks(const Tile *tile, int64_t r, int64_t b, int64_t n) {
    int64_t own = tile->sights[r].count - b * RANKS;
    return own < n ? own : n;
}

/* Weigh row r and those after it, up to `end`, that see as many slots of block `b`; returns how many these are. */
static int64_t weigh_alike(Tile *tile, int64_t r, int64_t end, int64_t b, const int32_t *seen, int64_t n, int is_row) {
    float some[MOST_WEIGHED][RANKS];
    const float *added[MOST_WEIGHED];
    const Sight *sight = tile->sights + r;
    int64_t own = own_ranks(tile, r, b, n), rows = 0, is_plain = sight->is_plain;
    for (; rows < MOST_WEIGHED && r + rows < end && own_ranks(tile, r + rows, b, n) == own && sight[rows].is_plain == is_plain; rows++) {
        const float *of_row = sight[rows].added;
        if (is_plain) continue;
        added[rows] = is_row ? of_row + seen[0] : some[rows];
        for (int64_t k = 0; k < own && !is_row; k++) some[rows][k] = of_row[seen[k]];
    }
    weigh_pairs(rows, tile->scores + r * RANKS, own, (float)tile->it->scale, is_plain ? 0 : added, tile->of + r);
    return rows;
}

/* The results of block `b` for some of a tile's rows, all of which see the slots of their ranks in it in `seen`. */
static void read_block(Tile *tile, int64_t first, int64_t rows, int64_t b, const int32_t *seen, int64_t n, int is_row) {
    const Instruction *it = tile->it;
    int64_t d = it->inner, s = it->short_cache, words = words_of(d, s), width = filled_channels(d), counts = 0;
    for (int64_t k = 0; k < n; k += KEYS_AT_ONCE) {
        int64_t some = n - k < KEYS_AT_ONCE ? n - k : KEYS_AT_ONCE, few;
        turn_keys(tile->keys, seen, k, k + some, d, tile->turned, s, is_row);
        for (int64_t r = first; r < first + rows; r += few) {
            few = first + rows - r < MOST_DOTTED ? first + rows - r : MOST_DOTTED;
            (s && IN_PAIRS ? dots_pairs : dots_wide)(few, (some + LANES - 1) / LANES, tile->query + r * words, words, tile->turned,
                                                     tile->scores + r * RANKS + k);
        }
    }
    memset(tile->mixed + first * width, 0, rows * width * sizeof(float));
    for (int64_t r = first, some; r < first + rows; r += some) {
        int64_t own = own_ranks(tile, r, b, n);
        some = 1;
        if (own <= 0) {
            tile->of[r] = (Weighed){-INFINITY, 0};
            memset(tile->scores + r * RANKS, 0, RANKS * sizeof(float));
            continue;
        }
        if (s && IN_PAIRS) some = weigh_alike(tile, r, first + rows, b, seen, n, is_row);
        else tile->of[r] = weigh_block(tile->scores + r * RANKS, own, RANKS, (float)it->scale, tile->sights[r].added, seen, is_row);
        counts = r + some - first;
    }
    for (int64_t k = 0; k < n && counts; k += VALUES_AT_ONCE) {
        int64_t some = n - k < VALUES_AT_ONCE ? n - k : VALUES_AT_ONCE, few;
        int64_t laid = laid_values(tile->values, seen, k, k + some, d, tile->laid, s, is_row), at = s && IN_PAIRS ? k / 2 : k;
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

/* Floats that threads share if they divide the blocks of `rows` tokens' attention over `slots` slots. */
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
            const float *added = 0;
            if (it->outside[2] >= 0) { /* the bias' axes for texts, heads and rows may each have one entry for all */
                const int64_t *sizes = part->sizes;
                int64_t of = text * (sizes[it->bias_texts] > 1), at = (token + t) * (sizes[it->bias_rows] > 1);
                of = sizes[it->bias_heads] > 1 ? of * it->heads + head + h : of;
                added = (const float *)part->outside[it->outside[2]] + (of * sizes[it->bias_rows] + at) * slots;
            }
            Sight *sight = tile->sights + r;
            if (r < tile->known && added && sight->added == added) continue; /* other heads of the same tokens */
            sight->added = added;
            if (r && sight[-1].added == added) *sight = sight[-1];
            else look(sight, slots);
        }
    tile->known = tile->rows;
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

/* This thread's part of attention. It claims whole tiles, one after another, and writes their results; tiles of a text's
   last tokens come first, since they take longest. If threads share a tile, it reads its own part of the blocks, and
   results go to `shared`. */
static void attend_blocks(const Instruction *it, const Step *step, const float *q, float *out, float *scratch, float *shared,
                          int64_t *claimed, int thread, int threads) {
    int64_t group = it->heads / it->key_heads, d = it->inner, width = filled_channels(d), number = 0, mine = -1;
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
            for (int64_t token = (tokens - 1) / at_a_time * at_a_time; token >= 0; token -= at_a_time)
                for (int64_t head = 0; head < it->heads; head = head + heads < (head / group + 1) * group ? head + heads : (head / group + 1) * group) {
                    if (mine < number) mine = claim(claimed);
                    if (number++ != mine) continue;
                    int64_t left = (head / group + 1) * group - head, some = tokens - token < at_a_time ? tokens - token : at_a_time;
                    begin_tile(&tile, part, first_row, text, token, some, head, left < heads ? left : heads, q);
                    for (int64_t b = 0, blocks = blocks_of(&tile); b < blocks; b++) {
                        read_ranks(&tile, b);
                        for (int64_t r = 0; r < tile.rows; r += ADDED)
                            add_block(tile.rows - r < ADDED ? tile.rows - r : ADDED, tile.highest + r, tile.sum + r, tile.out + r * width,
                                      tile.of + r, tile.mixed + r * width, width);
                    }
                    for (int64_t r = 0; r < tile.rows; r++) {
                        int64_t row = first_row + text * tokens + token + r / tile.group;
                        put_row(it, tile.out + r * width, tile.sum[r], out + row * it->out.stride + (head + r % tile.group) * d);
                    }
                }
    }
}

/* Add up the results of threads that share blocks, for this thread's rows. */
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
            add_block(1, &highest, &sum, tile.out, (const Weighed *)from, from + 2, width);
        }
        put_row(it, tile.out, sum, out + r / group * it->out.stride + head * it->inner);
    }
}
