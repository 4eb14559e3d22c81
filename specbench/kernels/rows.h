/* Rows of logits: probabilities, draws, and Algorithm 1's verdict. */

enum { NOT_DRAWN = -1, PIECE = 64, SUMS = 1024 };

/* Widen a row of n logits to `v`. Returns its maximum, or NaN if there is a NaN or no finite maximum. */
static float widened(const void *logits, int64_t first, int64_t short_floats, float *v, int64_t n) {
    if (short_floats) widen_all((const uint16_t *)logits + first, v, n);
    else memcpy(v, (const float *)logits + first, n * sizeof(float));
    return highest_of(v, 0, n, 0);
}

/* The first of the highest of n logits; NOT_DRAWN if `widened` returns NaN. */
static int64_t likeliest_of(const void *logits, int64_t first, int64_t short_floats, int64_t n) {
    const uint16_t *narrow_v = (const uint16_t *)logits + first;
    const float *v = (const float *)logits + first;
    float most = short_floats ? highest_of(logits, first, n, 1) : highest_of(logits, first, n, 0);
    if (most != most) return NOT_DRAWN;
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

/* How a row of logits becomes probabilities, T > 0: `top_k` 0 and `top_p` 1 are off. */
typedef struct { double temperature, top_p; int64_t top_k; } Sampling;

/* Numbers that are ordered as floats are, and back. */
static inline uint32_t rank_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u >> 31 ? ~u : u | 0x80000000u; }
static inline float ranked(uint32_t u) { float f; u = u >> 31 ? u & 0x7fffffffu : ~u; memcpy(&f, &u, 4); return f; }

/* The highest of n numbers at which those above and itself come to `enough`; minus infinity if all of them do not.
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

/* A row of logits as probabilities; NaN throughout if it has no finite maximum. Top-k keeps all that equal the k-th. */
static void softmax_row(const void *logits, int64_t first, int64_t short_floats, float *v, int64_t n, const Sampling *how) {
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
    exp_all(v, n, most, factor);
    factor = (float)(1 / sum_of(v, n));
    for (int64_t i = 0; i < n; i++) v[i] *= factor;
    if (how->top_p < 1) keep_nucleus(v, n, how->top_p);
}

/* A token from weights [n] that need not sum to 1, by inverting their distribution function: first the piece, then the
   token in it. Never one of weight 0; NOT_DRAWN if the weights are not finite. */
static int64_t drawn_from(const float *v, int64_t n, double uniform) {
    double mass = 0, before = 0, sums[SUMS]; /* sums of the first pieces: a vocabulary of usual size is summed once */
    for (int64_t at = 0; at < n; at += PIECE) {
        double sum = sum_of(v + at, at + PIECE < n ? PIECE : n - at);
        if (at < SUMS * PIECE) sums[at / PIECE] = sum;
        mass += sum;
    }
    if (!(mass > 0)) return NOT_DRAWN;
    double wanted = uniform * mass;
    int64_t found = NOT_DRAWN;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t end = at + PIECE < n ? at + PIECE : n;
        double sum = at < SUMS * PIECE ? sums[at / PIECE] : sum_of(v + at, end - at);
        if (before + sum <= wanted) { before += sum; continue; }
        for (int64_t i = at; i < end && before <= wanted; i++)
            if (v[i] > 0) before += v[i], found = i;
        if (found != NOT_DRAWN) return found;
    }
    for (int64_t i = n - 1; i >= 0; i--) if (v[i] > 0) return i; /* rounding took the last token's share */
    return NOT_DRAWN;
}

typedef struct { const void *logits; int64_t short_floats, stride; float *out; int64_t rows, n; const Sampling *how; } Rows;
static void soften_job(void *given, int thread, int threads) {
    const Rows *of = given;
    for (int64_t r = of->rows * thread / threads; r < of->rows * (thread + 1) / threads; r++)
        softmax_row(of->logits, r * of->stride, of->short_floats, of->out + r * of->n, of->n, of->how);
}

/* Rows [rows, n] of probabilities from logits of `stride` a row. */
void standardise(const void *logits, int64_t short_floats, int64_t stride, float *out, int64_t rows, int64_t n,
                 const Sampling *how, int64_t most_threads) {
    Rows of = {logits, short_floats, stride, out, rows, n, how};
    if (rows > 1 && rows * n > 1 << 16) in_team(soften_job, &of, most_threads);
    else soften_job(&of, 0, 1);
}

/* A token from each of the rows [rows, n]. */
void draw(const float *weights, int64_t rows, int64_t n, const double *uniforms, int64_t *tokens) {
    for (int64_t r = 0; r < rows; r++) tokens[r] = drawn_from(weights + r * n, n, uniforms[r]);
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
        softmax_row(choice->logits, first, choice->short_floats, v, n, &choice->how);
        return drawn_from(v, n, choice->uniforms[step]);
    }
    return likeliest_of(choice->logits, first, choice->short_floats, n);
}
