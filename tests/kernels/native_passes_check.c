/* Steps, rollouts, passes and experts on several threads, against plain loops over one step at a time on one thread; built
   with a sanitizer of memory or of threads. Exit code 1: a difference, which is printed.

   A sanitizer of threads does not see how an OpenMP library waits: for it the kernels are built with the team of their own. */
#include "native_check.h"

/* A model of one layer: attention over a cache, with a residual, and a map to logits. */
enum { WIDTH = 24, HEADS = 4, KEY_HEADS = 2, D = 8, TOKENS = 37, CAPACITY = 150, MOST = 6, OPS = 10, TENSORS = 6 };
enum { IDS, SLOT, KEYS, VALUES_OF, BIAS, RESULTS };
typedef struct {
    int64_t s, arena_floats, scratch, shared;
    Instruction program[OPS];
    void *held[8]; int64_t held_count;
    void *caches[2], *outside[MOST + 1][TENSORS], *placed[MOST + 1][CAPACITY + 1][2];
    void *const *by_length[MOST + 1][CAPACITY + 1]; void *const *const *tables[MOST + 1];
    int64_t sizes[MOST + 1][4], moved[2];
    Part parts[MOST + 1]; Step steps[MOST + 1]; Step *by_count[MOST + 1];
} Model;

static void *keep(Model *m, void *made) { return m->held[m->held_count++] = made; }

static Instruction *add(Model *m, int number, int64_t op, int64_t at, int64_t width, int64_t from, int64_t inner) {
    Instruction *it = m->program + number;
    *it = (Instruction){.op = op, .width = width, .period = width, .inner = inner, .short_floats = m->s, .barrier = number + 1 < OPS};
    it->activation = -1, it->out = (Ref){at, 0, width}, it->x = (Ref){from, 0, inner}, it->y = it->z = (Ref){0, 0, WIDTH};
    for (int i = 0; i < 4; i++) it->outside[i] = -1;
    if (op == LINEAR) {
        float *w = floats(width * inner, m->s);
        void *plain = weights_of(w, width * inner, m->s), *packed = keep(m, malloc(packed_size(width, inner) * (m->s ? 2 : 4)));
        pack(plain, packed, width, inner, m->s);
        it->weight = packed;
        free(w), free(plain);
    }
    return it;
}

static Model *model_of(int64_t s) {
    Model *m = calloc(1, sizeof(Model));
    m->s = s;
    const int64_t x = 0, q = WIDTH, k = q + HEADS * D, v = k + KEY_HEADS * D, a = v + KEY_HEADS * D, y = a + HEADS * D, end = y + WIDTH;
    float *table = floats(TOKENS * WIDTH, s);
    Instruction *it = add(m, 0, EMBED, x, WIDTH, 0, TOKENS);
    it->weight = keep(m, weights_of(table, TOKENS * WIDTH, s)), it->outside[0] = IDS;
    free(table);
    add(m, 1, LINEAR, q, HEADS * D, x, WIDTH), add(m, 2, LINEAR, k, KEY_HEADS * D, x, WIDTH), add(m, 3, LINEAR, v, KEY_HEADS * D, x, WIDTH);
    for (int i = 0; i < 2; i++) {
        it = add(m, 4 + i, WRITE, 0, KEY_HEADS * D, i ? v : k, D);
        it->x.stride = KEY_HEADS * D, it->heads = KEY_HEADS, it->short_cache = s, it->outside[0] = KEYS + i, it->outside[1] = SLOT;
    }
    m->program[4].barrier = 0; /* the two write to caches of their own */
    it = add(m, 6, ATTEND, a, HEADS * D, q, D);
    it->x.stride = HEADS * D, it->heads = HEADS, it->key_heads = KEY_HEADS, it->short_cache = s, it->scale = 0.3;
    it->outside[0] = KEYS, it->outside[1] = VALUES_OF, it->outside[2] = BIAS;
    it->bias_texts = 1, it->bias_heads = 2, it->bias_rows = 3;
    it = add(m, 7, LINEAR, y, WIDTH, a, HEADS * D), it->residual = 1, it->y = (Ref){x, 0, WIDTH};
    add(m, 8, LINEAR, end, TOKENS, y, WIDTH);
    it = add(m, 9, STORE, 0, TOKENS, end, TOKENS), it->outside[0] = RESULTS;
    m->arena_floats = end + TOKENS;
    for (int i = 0; i < 2; i++) m->caches[i] = calloc(KEY_HEADS * CAPACITY * D, s ? 2 : 4);
    m->moved[0] = SLOT, m->moved[1] = BIAS;
    for (int64_t n = 1; n <= MOST; n++) {
        for (int64_t length = 0; length + n <= CAPACITY; length++) {
            int64_t *slots = malloc(n * sizeof(int64_t));
            float *bias = malloc(n * CAPACITY * sizeof(float));
            for (int64_t r = 0; r < n; r++) {
                slots[r] = length + r;
                for (int64_t c = 0; c < CAPACITY; c++) bias[r * CAPACITY + c] = c <= length + r ? 0 : -3.3e38f;
            }
            m->placed[n][length][0] = slots, m->placed[n][length][1] = bias, m->by_length[n][length] = m->placed[n][length];
        }
        m->outside[n][KEYS] = m->caches[0], m->outside[n][VALUES_OF] = m->caches[1], m->tables[n] = m->by_length[n];
        m->sizes[n][0] = CAPACITY, m->sizes[n][1] = m->sizes[n][2] = 1, m->sizes[n][3] = n;
        m->parts[n] = (Part){m->outside[n], m->sizes[n], 1, n, m->moved, 0, 2, IDS, RESULTS};
        m->steps[n] = (Step){m->program, OPS, m->parts + n, 1, n}, m->by_count[n] = m->steps + n;
        int64_t shared = shared_room(HEADS, KEY_HEADS, D, n, CAPACITY), maps = (WIDTH + HEADS * D + 32) * n, room = attend_room(D);
        m->shared = shared > m->shared ? shared : m->shared, room = maps > room ? maps : room;
        m->scratch = (room + 15) / 16 * 16;
    }
    return m;
}

static void free_model(Model *m) {
    for (int64_t i = 0; i < m->held_count; i++) free(m->held[i]);
    for (int64_t n = 1; n <= MOST; n++)
        for (int64_t length = 0; length + n <= CAPACITY; length++) free(m->placed[n][length][0]), free(m->placed[n][length][1]);
    free(m->caches[0]), free(m->caches[1]), free(m);
}

/* Room for `threads` threads, exactly as long as the kernels may use. */
static float *scratch_for(const Model *a, const Model *b, int64_t threads, int64_t *size) {
    *size = a->scratch > b->scratch ? a->scratch : b->scratch;
    return floats(*size * threads + (a->shared > b->shared ? a->shared : b->shared), 0);
}

/* The logits [TOKENS] after each of `count` tokens, one step at a time on one thread. */
static void *plainly(Model *m, int64_t *tokens, int64_t length, int64_t count) {
    int64_t size, bytes = TOKENS * (m->s ? 2 : 4);
    char *logits = malloc(count * bytes);
    float *arena = floats(m->arena_floats, 0), *scratch = scratch_for(m, m, 1, &size);
    for (int64_t i = 0; i < count; i++) {
        m->parts[1].placed = m->by_length[1][length + i];
        m->outside[1][IDS] = tokens + i, m->outside[1][RESULTS] = logits + i * bytes;
        run(m->steps + 1, arena, scratch, size, 1);
    }
    free(arena), free(scratch);
    return logits;
}

static int64_t argmax_of(const void *logits, int64_t row, int64_t s) {
    int64_t best = 0;
    for (int64_t i = 1; i < TOKENS; i++) if (weight_at(logits, row * TOKENS + i, s) > weight_at(logits, row * TOKENS + best, s)) best = i;
    return best;
}

/* Several rows on several threads have the bits of single rows on one. */
static void check_run(int64_t s, int64_t threads) {
    Model *m = model_of(s);
    int64_t size, tokens[MOST], length = 130, bytes = TOKENS * (s ? 2 : 4), text[CAPACITY];
    for (int64_t i = 0; i < CAPACITY; i++) text[i] = rand() % TOKENS;
    free(plainly(m, text, 0, length));
    for (int64_t i = 0; i < MOST; i++) tokens[i] = rand() % TOKENS;
    void *wanted = plainly(m, tokens, length, MOST), *found = malloc(MOST * bytes);
    float *arena = floats(m->arena_floats * MOST, 0), *scratch = scratch_for(m, m, threads, &size);
    m->parts[MOST].placed = m->by_length[MOST][length], m->outside[MOST][IDS] = tokens, m->outside[MOST][RESULTS] = found;
    run(m->steps + MOST, arena, scratch, size, threads);
    if (memcmp(wanted, found, MOST * bytes)) failed++, printf("run: %ld threads differ from one\n", (long)threads);
    free(wanted), free(found), free(arena), free(scratch), free_model(m);
}

/* So have prompts of many rows, which threads read some rows at a time: two texts in one step, each with caches of its own. */
static void check_prompts(int64_t s, int64_t threads) {
    enum { TEXTS = 2, ROWS = CAPACITY };
    const int64_t counts[TEXTS] = {90, ROWS - 90}, size = s ? 2 : 4, all = KEY_HEADS * CAPACITY * D * size;
    Model *m = model_of(s);
    int64_t text[ROWS], slots[ROWS], sizes[TEXTS][4], maps = (WIDTH + HEADS * D + 32) * ROWS, room = attend_room(D);
    void *outside[TEXTS][TENSORS], *wanted[TEXTS], *caches[TEXTS][2];
    char *found = malloc(ROWS * TOKENS * size);
    float *bias = floats(ROWS * CAPACITY, 0), *arena = floats(m->arena_floats * ROWS, 0);
    Part parts[TEXTS];
    room = ((maps > room ? maps : room) + 15) / 16 * 16;
    float *scratch = floats(room * threads, 0);
    for (int64_t r = 0; r < ROWS; r++) {
        text[r] = rand() % TOKENS, slots[r] = r;
        for (int64_t c = 0; c < CAPACITY; c++) bias[r * CAPACITY + c] = c <= r ? 0 : -3.3e38f;
    }
    for (int64_t i = 0, first = 0; i < TEXTS; first += counts[i++]) {
        wanted[i] = plainly(m, text + first, 0, counts[i]);
        void *read[TENSORS] = {text + first, slots, 0, 0, bias, found + first * TOKENS * size};
        for (int j = 0; j < 2; j++) {
            caches[i][j] = malloc(all), memcpy(caches[i][j], m->caches[j], all);
            read[KEYS + j] = malloc(all), memcpy(read[KEYS + j], m->caches[j], all);
            for (int64_t h = 0; h < KEY_HEADS; h++) memset((char *)read[KEYS + j] + h * CAPACITY * D * size, 0, counts[i] * D * size);
        }
        memcpy(outside[i], read, sizeof read);
        int64_t own[4] = {CAPACITY, 1, 1, counts[i]};
        memcpy(sizes[i], own, sizeof own);
        parts[i] = (Part){outside[i], sizes[i], 1, counts[i], 0, 0, 0, IDS, RESULTS};
    }
    Step step = {m->program, OPS, parts, TEXTS, ROWS};
    run(&step, arena, scratch, room, threads);
    for (int64_t i = 0, first = 0; i < TEXTS; first += counts[i++]) {
        int differs = memcmp(wanted[i], found + first * TOKENS * size, counts[i] * TOKENS * size);
        for (int j = 0; j < 2; j++) differs |= memcmp(caches[i][j], outside[i][KEYS + j], all);
        if (differs) failed++, printf("prompts: text %ld on %ld threads differs\n", (long)i, (long)threads);
        for (int j = 0; j < 2; j++) free(caches[i][j]), free(outside[i][KEYS + j]);
        free(wanted[i]);
    }
    free(found), free(bias), free(arena), free(scratch), free_model(m);
}

/* A rollout is its steps: the argmax of each, up to the first end. */
static void check_rollout(int64_t s, int64_t threads, float temperature) {
    enum { STEPS = 5 };
    Model *m = model_of(s);
    int64_t size, tokens[STEPS], text[] = {3}, chosen, end = TOKENS / 2;
    void *logits = malloc(TOKENS * (s ? 2 : 4));
    float *arena = floats(m->arena_floats, 0), *scratch = scratch_for(m, m, threads, &size), *rows = floats(STEPS * TOKENS, 0);
    double uniforms[STEPS];
    for (int i = 0; i < STEPS; i++) uniforms[i] = (rand() % 1000 + 0.5) / 1000;
    void *outside[STEPS][TENSORS];
    Part parts[STEPS];
    Step steps[STEPS];
    for (int g = 0; g < STEPS; g++) {
        memcpy(outside[g], m->outside[1], sizeof outside[g]);
        outside[g][IDS] = g ? tokens + g - 1 : text, outside[g][RESULTS] = logits;
        parts[g] = m->parts[1], parts[g].outside = outside[g], parts[g].placed = m->by_length[1][g];
        steps[g] = m->steps[1], steps[g].parts = parts + g;
    }
    Choice choice = {logits, s, TOKENS, TOKENS, {temperature, 1, 0}, uniforms, rows, tokens, &end, 1};
    chosen = rollout(steps, STEPS, &choice, arena, scratch, size, threads);
    int64_t read = text[0];
    for (int64_t g = 0; g < STEPS; g++) {
        void *row = plainly(m, &read, g, 1);
        if (temperature > 0) {
            float own[TOKENS];
            standardise(row, s, TOKENS, own, 1, TOKENS, &choice.how, 1), draw(own, 1, TOKENS, uniforms + g, &read);
        } else read = argmax_of(row, 0, s);
        if (g >= chosen || tokens[g] != read) { failed++, printf("rollout: step %ld chose otherwise\n", (long)g); break; }
        free(row);
        if (read == end || g + 1 == STEPS) {
            if (chosen != g + 1) failed++, printf("rollout: %ld steps, not %ld\n", (long)chosen, (long)g + 1);
            break;
        }
    }
    free(logits), free(arena), free(scratch), free(rows), free_model(m);
}

/* Passes at T = 0 emit the target's own argmax after each token, whatever the draft; at T > 0 what tests and draws in plain
   loops emit from the same numbers. */
static void check_passes(int64_t s, int64_t threads, int64_t gamma, float temperature) {
    enum { PASSES = 6, PROMPT = 3 };
    Model *target = model_of(s), *draft = model_of(s);
    int64_t size, vocabulary = TOKENS, end = PROMPT + 40, most = gamma > 1 ? gamma + 1 : 2, bytes = TOKENS * (s ? 2 : 4);
    int64_t *tokens = calloc(end + gamma + 1, sizeof(int64_t)), *best = malloc((gamma + 1) * sizeof(int64_t));
    int64_t *drafted = malloc((PASSES * gamma + 1) * sizeof(int64_t));
    Pass done[PASSES];
    for (int64_t i = 0; i < PROMPT; i++) tokens[i] = i + 2;
    for (int i = 0; i < 2; i++) free(plainly(i ? draft : target, tokens, 0, PROMPT - 1));
    float *scratch = scratch_for(target, draft, threads, &size), *p = floats((gamma + 2) * TOKENS, 0), *q = floats((gamma + 1) * TOKENS, 0);
    float trials[PASSES * MOST];
    double nexts[PASSES], uniforms[PASSES * MOST];
    for (int i = 0; i < PASSES * MOST; i++) trials[i] = (rand() % 1000 + 0.5f) / 1000, uniforms[i] = (rand() % 1000 + 0.5) / 1000;
    for (int i = 0; i < PASSES; i++) nexts[i] = (rand() % 1000 + 0.5) / 1000;
    Reader readers[2];
    for (int i = 0; i < 2; i++) {
        Model *m = i ? target : draft;
        readers[i] = (Reader){m->by_count, m->tables, most, PROMPT - 1, CAPACITY, floats(m->arena_floats * most, 0), malloc(most * bytes)};
        readers[i].choice = (Choice){readers[i].logits, s, TOKENS, vocabulary, {temperature, 1, 0}, uniforms, i ? p : q, 0, 0, 0};
    }
    Passes passes = {tokens, PROMPT, end, gamma, PASSES, -1, {EXACT}, temperature > 0 ? trials : 0, temperature > 0 ? nexts : 0, 1e-9,
                     p + (gamma + 1) * TOKENS, best, done, drafted};
    int64_t count = speculate(readers, readers + 1, &passes, scratch, size, threads), length = PROMPT;
    if (count != PASSES) failed++, printf("passes: %ld of %d\n", (long)count, PASSES);
    int64_t *text = malloc((end + gamma + 1) * sizeof(int64_t));
    memcpy(text, tokens, (end + gamma + 1) * sizeof(int64_t));
    for (int64_t pass = 0; pass < count; pass++) {
        int64_t given[MOST + 1], accepted = 0, next = 0;
        float own_p[(MOST + 1) * TOKENS], own_q[MOST * TOKENS];
        given[0] = text[length - 1];
        for (int64_t g = 0; g < gamma; g++) { /* what the draft drafts */
            void *row = plainly(draft, given + g, length - 1 + g, 1);
            if (temperature > 0) {
                standardise(row, s, TOKENS, own_q + g * TOKENS, 1, TOKENS, &readers[0].choice.how, 1);
                draw(own_q + g * TOKENS, 1, TOKENS, uniforms + pass * gamma + g, given + g + 1);
            } else given[g + 1] = argmax_of(row, 0, s);
            free(row);
            if (given[g + 1] != drafted[pass * gamma + g]) failed++, printf("passes: token %ld is drafted otherwise\n", (long)g);
        }
        void *rows = plainly(target, given, length - 1, gamma + 1);
        if (temperature > 0) {
            standardise(rows, s, TOKENS, own_p, gamma + 1, TOKENS, &readers[1].choice.how, 1);
            for (; accepted < gamma; accepted++) {
                int64_t at = accepted * TOKENS + given[accepted + 1];
                if (trials[pass * gamma + accepted] * own_q[at] >= own_p[at]) break;
            }
            float *law = own_p + accepted * TOKENS, left[TOKENS];
            for (int64_t i = 0; i < TOKENS; i++) {
                float excess = accepted < gamma ? law[i] - own_q[accepted * TOKENS + i] : law[i];
                left[i] = excess > 0 ? excess : 0;
            }
            draw(left, 1, TOKENS, nexts + pass, &next);
        } else {
            for (; accepted < gamma && argmax_of(rows, accepted, s) == given[accepted + 1];) accepted++;
            next = argmax_of(rows, accepted, s);
        }
        free(rows);
        if (done[pass].drafted != gamma || done[pass].accepted != accepted || done[pass].emitted != accepted + 1) {
            failed++, printf("passes: %ld accepted, not %ld\n", (long)done[pass].accepted, (long)accepted);
            break;
        }
        for (int64_t i = 0; i < accepted; i++)
            if (text[length + i] != given[i + 1]) failed++, printf("passes: token %ld is emitted otherwise\n", (long)(length + i));
        if (text[length + accepted] != next) failed++, printf("passes: another token follows\n");
        length += accepted + 1;
    }
    if (count == PASSES && passes.length != length) failed++, printf("passes: a text of %ld tokens\n", (long)passes.length);
    for (int i = 0; i < 2; i++) free(readers[i].arena), free(readers[i].logits);
    free(tokens), free(text), free(best), free(drafted), free(scratch), free(p), free(q), free_model(target), free_model(draft);
}

/* Experts against plain loops. What bf16 rounds is a part of each term, so the bound is one of the terms' sizes: their sum may be small. */
static void check_experts(int64_t s, int64_t threads, int64_t tokens, int64_t per_token, int64_t clamped) {
    enum { EXPERTS = 5, INNER = 11 };
    int64_t n = 2 * INNER, pairs = tokens * per_token, size = (tokens + 1) * (WIDTH + 64);
    float *up[EXPERTS], *down[EXPERTS], *x = floats(tokens * WIDTH, s), *by = floats(pairs, s);
    float *up_bias = floats(EXPERTS * n, s), *down_bias = floats(EXPERTS * WIDTH, s);
    void *packed[2][EXPERTS], *states = weights_of(x, tokens * WIDTH, s), *weights = weights_of(by, pairs, s);
    void *biases[2] = {weights_of(up_bias, EXPERTS * n, s), weights_of(down_bias, EXPERTS * WIDTH, s)};
    int64_t *chosen = malloc(pairs * sizeof(int64_t));
    for (int64_t i = 0; i < pairs; i++) chosen[i] = (i / per_token + i % per_token * 2) % (EXPERTS - 1); /* the last is not chosen */
    for (int e = 0; e < EXPERTS; e++) {
        up[e] = floats(n * WIDTH, s), down[e] = floats(WIDTH * INNER, s);
        for (int i = 0; i < 2; i++) {
            int64_t outputs = i ? WIDTH : n, inputs = i ? INNER : WIDTH;
            void *plain = weights_of(i ? down[e] : up[e], outputs * inputs, s);
            pack(plain, packed[i][e] = malloc(packed_size(outputs, inputs) * (s ? 2 : 4)), outputs, inputs, s);
            free(plain);
        }
    }
    Experts experts = {(const void *const *)packed[0], (const void *const *)packed[1], biases[0], biases[1], EXPERTS, WIDTH, INNER, s,
                       SILU, clamped, 1.702, 0.9};
    int64_t floats_of_room = pairs * (2 * WIDTH + 3 * INNER) + (pairs * 3 * INNER & 1) + 2 * (pairs + EXPERTS + 1);
    float *room = floats(floats_of_room, 0), *scratch = floats(size * threads, 0);
    void *out = malloc(tokens * WIDTH * (s ? 2 : 4));
    mix_experts(&experts, states, chosen, weights, s, tokens, per_token, out, room, scratch, size, threads);
    for (int64_t t = 0; t < tokens; t++) {
        double sum[WIDTH] = {0}, sizes[WIDTH] = {0};
        for (int64_t k = t * per_token; k < (t + 1) * per_token; k++) {
            double mapped[2 * INNER], gated_row[INNER];
            int64_t e = chosen[k];
            for (int64_t j = 0; j < n; j++) {
                mapped[j] = up_bias[e * n + j];
                for (int64_t i = 0; i < WIDTH; i++) mapped[j] += (double)x[t * WIDTH + i] * up[e][j * WIDTH + i];
            }
            for (int64_t j = 0; j < INNER; j++) {
                double gate = clamped ? fmin(mapped[2 * j], 0.9) : mapped[j], more = clamped ? fmax(fmin(mapped[2 * j + 1], 0.9), -0.9) + 1 : mapped[INNER + j];
                gated_row[j] = gate / (1 + exp(-gate * (clamped ? 1.702 : 1))) * more;
            }
            for (int64_t j = 0; j < WIDTH; j++) {
                double v = down_bias[e * WIDTH + j], of_terms = fabs(v);
                for (int64_t i = 0; i < INNER; i++) {
                    double term = gated_row[i] * down[e][j * INNER + i];
                    v += term, of_terms += fabs(term);
                }
                sum[j] += by[k] * v, sizes[j] += fabs(by[k]) * of_terms;
            }
        }
        for (int64_t j = 0; j < WIDTH; j++)
            compare_within("experts", weight_at(out, t * WIDTH + j, s), (float)sum[j], (s ? 1e-2f : 1e-6f) * (float)sizes[j], t, j);
    }
    for (int e = 0; e < EXPERTS; e++) free(up[e]), free(down[e]), free(packed[0][e]), free(packed[1][e]);
    free(x), free(by), free(up_bias), free(down_bias), free(states), free(weights), free(biases[0]), free(biases[1]), free(chosen);
    free(room), free(scratch), free(out);
}

/* The most threads may be given: 1 to 4 are tried, and then twice as many each time. */
int main(int count, char **given) {
    int most = count > 1 ? atoi(given[1]) : 4;
    for (int64_t s = 0; s < 2; s++)
        for (int64_t threads = 1; threads <= most; threads += threads < 4 ? 1 : threads) {
            check_run(s, threads), check_prompts(s, threads);
            check_rollout(s, threads, 0), check_rollout(s, threads, 0.8f);
            for (int64_t gamma = 0; gamma < MOST; gamma += gamma ? 2 : 1) check_passes(s, threads, gamma, 0), check_passes(s, threads, gamma, 2);
            check_experts(s, threads, 1, 2, 0), check_experts(s, threads, 7, 2, 1), check_experts(s, threads, 3, 1, 0);
        }
    printf("%s: up to %d threads, %d differences\n", failed ? "failed" : "passed", most, failed);
    return failed > 0;
}
