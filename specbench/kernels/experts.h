/* A layer of experts. */

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
        activate_all(v, out, m, e->activation, s);
        for (int64_t i = 0; i < m; i++) out[i] = rounded(out[i] * v[m + i], s);
        return;
    }
    for (int64_t i = 0; i < m; i++) {
        float gate = v[2 * i], up = v[2 * i + 1];
        gate = gate > limit ? limit : gate, up = up > limit ? limit : up < -limit ? -limit : up;
        float turned = rounded(1.0f / (1.0f + expf(-rounded(gate * alpha, s))), s);
        out[i] = rounded(rounded(up + 1.0f, s) * rounded(gate * turned, s), s);
    }
}

/* A call: its tokens' states, the experts that each chose and their weights, and rows ordered by expert at each stage
   of a map: an expert's rows start at `begin`, and the row of a token's choice is at `place`. */
typedef struct {
    const Experts *experts; const char *states; const void *weights; int64_t short_weights, tokens, per_token; char *out;
    float *x, *mapped, *gated_rows, *found; int64_t *place, *begin;
    Scratch scratch; Barrier barrier;
} Mixing;

static void mix_job(void *given, int thread, int threads) {
    Mixing *of = given;
    const Experts *e = of->experts;
    const int64_t s = e->short_floats, width = e->width, m = e->inner, n = 2 * m, per_token = of->per_token, pairs = of->tokens * per_token;
    const int64_t *place = of->place, *begin = of->begin;
    float *x = of->x, *mapped = of->mapped, *gated_rows = of->gated_rows, *found = of->found, *own = own_scratch(&of->scratch, thread);
    for (int64_t pair = pairs * thread / threads; pair < pairs * (thread + 1) / threads; pair++) {
        const char *row = of->states + pair / per_token * width * (s ? 2 : 4);
        if (s) widen_all((const uint16_t *)row, x + place[pair] * width, width);
        else memcpy(x + place[pair] * width, row, width * sizeof(float));
    }
    wait_for_all(&of->barrier, threads);
    for (int64_t i = 0; i < e->experts; i++)
        if (begin[i + 1] > begin[i])
            map_rows(e, e->up[i], e->up_bias, i, x + begin[i] * width, width, mapped + begin[i] * n, n,
                     begin[i + 1] - begin[i], own, thread, threads);
    wait_for_all(&of->barrier, threads);
    for (int64_t r = pairs * thread / threads; r < pairs * (thread + 1) / threads; r++)
        gate_row(e, mapped + r * n, gated_rows + r * m);
    wait_for_all(&of->barrier, threads);
    for (int64_t i = 0; i < e->experts; i++)
        if (begin[i + 1] > begin[i])
            map_rows(e, e->down[i], e->down_bias, i, gated_rows + begin[i] * m, m, found + begin[i] * width, width,
                     begin[i + 1] - begin[i], own, thread, threads);
    wait_for_all(&of->barrier, threads);
    int64_t first = width * thread / threads, end = width * (thread + 1) / threads;
    for (int64_t t = 0; t < of->tokens; t++) {
        memset(own, 0, (end - first) * sizeof(float));
        for (int64_t pair = t * per_token; pair < (t + 1) * per_token; pair++) {
            float by = weight_at(of->weights, pair, of->short_weights), *row = found + place[pair] * width + first;
            for (int64_t i = 0; i < end - first; i++) own[i] += rounded(row[i] * by, s && of->short_weights);
        }
        char *to = of->out + (t * width + first) * (s ? 2 : 4);
        if (s) shorten_all(own, (uint16_t *)to, end - first);
        else memcpy(to, own, (end - first) * sizeof(float));
    }
    if (has_tiles && s) release_tiles();
}

/* To `out` [T, E], as the model's numbers: of each token its `per_token` experts' results, weighed and added up in the
   order in which they were chosen. The weights of an expert that is hit are read once. `room` has space for
   tokens * per_token * (2 * width + N + inner) floats and as many numbers again as pairs and experts, and `scratch` of
   each thread for as many rows as a map reads. */
void mix_experts(const Experts *e, const void *states, const int64_t *chosen, const void *weights, int64_t short_weights,
                 int64_t tokens, int64_t per_token, void *out, float *room, float *scratch, int64_t scratch_size,
                 int64_t most_threads) {
    int64_t width = e->width, m = e->inner, pairs = tokens * per_token;
    Mixing of = {e, states, weights, short_weights, tokens, per_token, out, .scratch = {scratch, scratch_size, most_threads}};
    of.x = room, of.mapped = of.x + pairs * width, of.gated_rows = of.mapped + pairs * 2 * m, of.found = of.gated_rows + pairs * m;
    of.place = (int64_t *)(of.found + pairs * width + (pairs * (3 * m) & 1)), of.begin = of.place + pairs;
    memset(of.begin, 0, (e->experts + 1) * sizeof(int64_t));
    for (int64_t pair = 0; pair < pairs; pair++) of.begin[chosen[pair] + 1]++;
    for (int64_t i = 0; i < e->experts; i++) of.begin[i + 1] += of.begin[i];
    for (int64_t pair = 0; pair < pairs; pair++) of.place[pair] = of.begin[chosen[pair]]++; /* rows by expert, then by token */
    for (int64_t i = e->experts; i > 0; i--) of.begin[i] = of.begin[i - 1];
    of.begin[0] = 0;
    in_team(mix_job, &of, most_threads);
}
