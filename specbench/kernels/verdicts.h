/* Acceptance rules on a chain: how many draft tokens are accepted, and the token that follows them. Formulas and fp32
   operations are the same as in `algorithm.acceptance.rules`, which explains each rule. */

#define KINDS(of) of(EXACT) of(LENIENT) of(BY_BLOCK) of(TYPICAL) of(NEAR_BEST) of(MATCH) of(BY_CHANCE)
enum { KINDS(IN_TURN) };

/* A rule and its options, of which each kind reads its own. `beta` 0: off. */
typedef struct { int64_t kind, beta; double lenience, epsilon, delta, alpha; } Rule;

/* `count` draft tokens, the target's rows p [count + 1, n] and the draft's q [count, n], or 0 if each token had all
   mass. `trials` are the random numbers of the tests. `nexts` has the random number of the draw after them, or one for
   a draw at each place (MATCH). `room` has n floats for the residual, which is p if no more than `least` of it is left.
   */
typedef struct {
    const float *p, *q; const int64_t *drafted; int64_t count, n;
    const float *trials; const double *nexts; double least; float *room;
} Chain;

static float q_of(const Chain *of, int64_t g) { return of->q ? of->q[g * of->n + of->drafted[g]] : 1; }

/* p(x) from which Medusa's rule accepts. */
static float plausible_from(const Rule *rule, const float *p, int64_t n) {
    double entropy = 0;
    for (int64_t i = 0; i < n; i++) if (p[i] > 0) entropy -= p[i] * logf(p[i]);
    double bar = rule->delta * exp(-entropy);
    return (float)(bar < rule->epsilon ? bar : rule->epsilon);
}

/* p(x) from which tokens near the best are accepted. */
static float near_best_from(const Rule *rule, const float *p, int64_t n) {
    double above;
    int64_t best = likeliest_of(p, 0, 0, n);
    if (best < 0) return INFINITY; /* not finite: nothing is accepted, nor drawn */
    float least = (float)rule->lenience * p[best];
    float last = rule->beta > 0 && rule->beta < n ? reached(p, n, rule->beta, 0, &above) : 0;
    return least > last ? least : last;
}

/* Whether draft token g passes its own test. */
static int passes_test(const Rule *rule, const Chain *of, int64_t g) {
    const float *row = of->p + g * of->n;
    float p = row[of->drafted[g]], r = of->trials[g];
    switch (rule->kind) {
    case LENIENT: { float q = (float)rule->lenience * q_of(of, g); return p >= q || r < p / q; }
    case TYPICAL: return p > plausible_from(rule, row, of->n);
    case NEAR_BEST: return p >= near_best_from(rule, row, of->n);
    case BY_CHANCE: return r < (float)rule->alpha;
    default: return r * q_of(of, g) < p;
    }
}

/* Whether a token's test reads no other number of p, so that it may come before the rows of later tokens are known. */
static int tests_one_number(const Rule *rule) {
    return rule->kind == EXACT || rule->kind == LENIENT || rule->kind == BY_CHANCE;
}

/* What is left of weight_p p if draft token g is rejected, less weight_q q, in `room`; returns its mass. */
static double residual(const Chain *of, int64_t g, float weight_p, float weight_q) {
    int64_t n = of->n;
    const float *p = of->p + g * n, *q = of->q ? of->q + g * n : 0;
    for (int64_t i = 0; i < n; i++) {
        float mass = weight_p * p[i], excess = q ? mass - weight_q * q[i] : mass;
        of->room[i] = excess > 0 ? excess : 0;
    }
    if (!q) {
        float *drafted = of->room + of->drafted[g], excess = *drafted - weight_q;
        *drafted = excess > 0 ? excess : 0;
    }
    return sum_of(of->room, n);
}

/* The token that follows `accepted` tokens, of which the last but that were rejected: from the residual of
   weight_p p - weight_q q, or from p. */
static int64_t recovered(const Chain *of, int64_t accepted, float weight_p, float weight_q) {
    const float *law = of->p + accepted * of->n;
    if (accepted < of->count && residual(of, accepted, weight_p, weight_q) > of->least) law = of->room;
    return drawn_from(law, of->n, *of->nexts);
}

/* Block verification: the longest beginning that passes, and the token after it. */
static int64_t verify_block(const Chain *of, int64_t *token) {
    int64_t accepted = 0, n = of->n;
    float weight = 1, kept = 1; /* w_i, and the weight of the accepted beginning */
    for (int64_t i = 1; i <= of->count; i++) {
        float grown = weight * (of->p[(i - 1) * n + of->drafted[i - 1]] / q_of(of, i - 1)), chance;
        if (grown != grown) break; /* not finite, as 0 times infinity */
        weight = chance = grown < 1 ? grown : 1;
        if (i < of->count && weight < 1) {
            float rest = (float)residual(of, i, weight, 1);
            chance = rest / (rest + 1 - weight);
        }
        if (of->trials[i - 1] < chance) accepted = i, kept = weight;
    }
    *token = recovered(of, accepted, kept, 1);
    return accepted;
}

/* The verdict on a chain. Returns how many tokens are accepted; `token` receives the one that follows, or NOT_DRAWN. */
int64_t verify(const Rule *rule, const Chain *of, int64_t *token) {
    if (rule->kind == BY_BLOCK) return verify_block(of, token);
    int64_t accepted = 0, n = of->n;
    if (rule->kind == MATCH) {
        for (;; accepted++) {
            *token = drawn_from(of->p + accepted * n, n, of->nexts[accepted]);
            if (accepted == of->count || *token != of->drafted[accepted]) return accepted;
        }
    }
    while (accepted < of->count && passes_test(rule, of, accepted)) accepted++;
    const float *p = of->p + accepted * n;
    if (rule->kind == NEAR_BEST) *token = likeliest_of(p, 0, 0, n);
    else if (rule->kind == TYPICAL) *token = drawn_from(p, n, *of->nexts);
    else *token = recovered(of, accepted, 1, rule->kind == LENIENT ? (float)rule->lenience : 1);
    return accepted;
}
