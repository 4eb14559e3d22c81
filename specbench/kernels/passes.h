/* Steps and passes of Algorithm 1 in one call. */

/* Whether `token` ends the sequence, or none could be drawn. */
static int is_last(const Choice *choice, int64_t token) {
    int over = token == NOT_DRAWN;
    for (int64_t i = 0; i < choice->end_count; i++) over |= token == choice->ends[i];
    return over;
}

typedef struct { const Step *steps; int64_t count; const Choice *choice; float *arena; int64_t chosen; int over; Scratch scratch; Barrier barrier; } Rollout;
static void rollout_job(void *given, int thread, int threads) {
    Rollout *of = given;
    for (int64_t g = 0; g < of->count && !of->over; g++) {
        run_step(of->steps + g, of->arena, own_scratch(&of->scratch, thread), shared_scratch(&of->scratch), &of->barrier, thread, threads);
        wait_for_all(&of->barrier, threads);
        if (thread == 0) {
            int64_t token = of->choice->tokens[g] = choose(of->choice, of->steps[g].rows - 1, g);
            of->chosen = g + 1, of->over = is_last(of->choice, token);
        }
        wait_for_all(&of->barrier, threads);
    }
}

/* Run steps, each of which reads the token chosen after the step before. Returns the number of tokens chosen: the last
   is the first end of a text, or NOT_DRAWN, if there is one. */
int64_t rollout(const Step *steps, int64_t count, const Choice *choice, float *arena, float *scratch,
                int64_t scratch_size, int64_t most_threads) {
    Rollout of = {steps, count, choice, arena, .scratch = {scratch, scratch_size, most_threads}};
    for (int64_t g = 0; g < count; g++) place_parts(steps + g);
    in_team(rollout_job, &of, most_threads);
    return of.chosen;
}

/* One model of a pass: `steps[n]` reads n tokens, up to `most`, and `placed[n][length]` is what it reads after `length`
   tokens, null if it has not been looked up. */
typedef struct {
    Step *const *steps; void *const *const *const *placed;
    int64_t most, length, capacity;
    float *arena; void *logits; Choice choice;
    double ran_s; /* its steps in this pass */
} Reader;

/* The result of a pass, when drafting, verifying and accepting ended, and how long the steps of both models took. */
typedef struct {
    int64_t drafted, accepted, emitted;
    double drafted_s, verified_s, over_s, draft_ran_s, target_ran_s;
} Pass;

/* Passes over a text: its tokens, how many there are and may be, and gamma. `given`: how many tokens that were drafted
   elsewhere and follow the text, of which the target may have read all but a few, are verified in each pass, with their q in the draft's rows, or none if each had all
   mass; below 0 the draft is a model that drafts in C. Random numbers belong to the first pass, then to the next; at T
   = 0 there are no `nexts`. */
typedef struct {
    int64_t *tokens, length, end, gamma, most, given;
    Rule rule; const float *trials; const double *nexts; double least; /* as `verify` takes them */
    float *room; int64_t *best; /* for a row, and for gamma + 1 tokens */
    Pass *done; int64_t *drafted; /* gamma tokens of each pass, including rejected ones */
} Passes;

/* As Python's time.perf_counter. */
static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Whether `reader` can read `count` tokens after the first `length`. */
static int is_ready(const Reader *reader, int64_t length, int64_t count) {
    return count <= reader->most && length + count <= reader->capacity && reader->placed[count] && reader->placed[count][length];
}

/* The number of draft tokens of the next pass; -1 if there is none, or a model is not ready for it. */
static int64_t next_size(const Reader *draft, const Reader *target, const Passes *of) {
    int64_t room = of->end - of->length - 1, size = of->gamma < room ? of->gamma : room;
    if (of->given >= 0) size = of->given;
    if (size < 0 || !is_ready(target, target->length, of->length - target->length + size)) return -1;
    for (int64_t g = 0; g < size && of->given < 0; g++)
        if (!is_ready(draft, g ? of->length + g - 1 : draft->length, g ? 1 : of->length - draft->length)) return -1;
    return size;
}

/* Read the next `count` of `tokens`. */
static void read_on(Reader *reader, int64_t *tokens, int64_t count, float *scratch, float *shared, Barrier *barrier, int thread,
                    int threads) {
    const Step *step = reader->steps[count];
    if (thread == 0) {
        Part *part = (Part *)step->parts;
        part->placed = reader->placed[count][reader->length];
        place_parts(step);
        part->outside[part->ids] = tokens + reader->length, part->outside[part->results] = reader->logits;
        reader->length += count;
    }
    wait_for_all(barrier, threads);
    double began = thread == 0 ? now_s() : 0;
    run_step(step, reader->arena, scratch, shared, barrier, thread, threads);
    wait_for_all(barrier, threads);
    if (thread == 0) reader->ran_s += now_s() - began;
}

/* The chain of pass `pass` at T > 0: its `count` tokens `drafted`, p and q at each, and its random numbers. */
static Chain chain_of(const Passes *of, const Choice *drafting, const Choice *choosing, const int64_t *drafted, int64_t count,
                      int64_t pass) {
    int64_t drawn = of->rule.kind == MATCH ? of->gamma + 1 : 1;
    return (Chain){choosing->rows, drafting->rows, drafted, count, choosing->vocabulary, of->trials ? of->trials + pass * of->gamma : 0,
                   of->nexts + pass * drawn, of->least, of->room};
}

/* The rule's verdict on `drafted`, by p or at T = 0 by its argmax: what the pass emits is appended. Returns whether the
   text is over. */
static int conclude(const Passes *of, const Choice *drafting, const Choice *choosing, int64_t *drafted, int64_t count,
                    int64_t pass) {
    Pass *done = of->done + pass;
    int64_t accepted = 0, token, is_ended = 0;
    if (of->nexts) {
        Chain chain = chain_of(of, drafting, choosing, drafted, count, pass);
        accepted = verify(&of->rule, &chain, &token);
    } else {
        while (accepted < count && drafted[accepted] == of->best[accepted]) accepted++;
        token = of->best[accepted];
    }
    memcpy(of->drafted + pass * of->gamma, drafted, count * sizeof(int64_t));
    for (int64_t i = 0; i < accepted && !is_ended; i++)
        if (is_last(choosing, drafted[i])) accepted = i + 1, is_ended = 1; /* what follows an end is no part of the text */
    if (!is_ended) drafted[accepted] = token;
    done->drafted = count, done->accepted = accepted, done->emitted = accepted + !is_ended;
    return is_ended || is_last(choosing, token);
}

/* A call of `speculate`, and what its threads tell each other: the first one decides. */
typedef struct {
    Reader *draft, *target; Passes *of;
    int64_t pass, asked, count, unread; int ended, over, failed; /* unread: of the text, by the target */
    Scratch scratch; Barrier barrier;
} Speculation;

static void speculate_job(void *given, int thread, int threads) {
    Speculation *all = given;
    Reader *draft = all->draft, *target = all->target;
    Passes *of = all->of;
    Barrier *barrier = &all->barrier;
    float *own = own_scratch(&all->scratch, thread), *shared = shared_scratch(&all->scratch);
    for (;;) {
        const Choice *choosing = &target->choice;
        Choice drafting = draft->choice;
        int64_t *drafted = of->tokens + of->length, n = choosing->vocabulary;
        if (drafting.uniforms) drafting.uniforms += all->pass * of->gamma;
        if (thread == 0) {
            all->asked = all->count = all->ended || all->failed || all->pass == of->most ? -1 : next_size(draft, target, of);
            all->over = all->asked < 0, all->unread = of->length - target->length;
        }
        wait_for_all(barrier, threads);
        if (all->over) break;
        for (int64_t g = 0; g < all->count && of->given < 0; g++) {
            int64_t unread = of->length + g - draft->length;
            wait_for_all(barrier, threads); /* all have read the length */
            read_on(draft, of->tokens, unread, own, shared, barrier, thread, threads);
            if (thread == 0) {
                drafted[g] = choose(&drafting, unread - 1, g);
                all->failed = drafted[g] == NOT_DRAWN;
                if (is_last(&drafting, drafted[g])) {
                    for (int64_t i = g + 1; i < all->asked; i++) drafted[i] = drafted[g];
                    all->count = g + 1;
                }
            }
            wait_for_all(barrier, threads);
        }
        if (all->failed) break;
        if (thread == 0) of->done[all->pass].drafted_s = now_s();
        read_on(target, of->tokens, all->unread + all->asked, own, shared, barrier, thread, threads);
        Chain chain = {0};
        if (of->nexts) chain = chain_of(of, &drafting, choosing, drafted, all->count, all->pass);
        int in_turn = of->nexts && tests_one_number(&of->rule), failed = 0;
        for (int64_t first = 0, s = choosing->short_floats; first <= all->count && !failed; first += threads) {
            int64_t r = first + thread, next = first + threads, at = (all->unread - 1 + r) * choosing->stride;
            if (r <= all->count) {
                if (of->nexts) softmax_row(choosing->logits, at, s, choosing->rows + r * n, n, &choosing->how);
                else of->best[r] = likeliest_of(choosing->logits, at, s, n);
            }
            if (!in_turn || next > all->count) continue;
            /* Later rows are read only if these tokens pass, which each thread finds out for itself. */
            wait_for_all(barrier, threads);
            for (int64_t g = first; g < next && !failed; g++) failed = !passes_test(&of->rule, &chain, g);
        }
        wait_for_all(barrier, threads);
        if (thread == 0) {
            Pass *done = of->done + all->pass;
            done->verified_s = now_s();
            all->ended = conclude(of, &drafting, choosing, drafted, all->count, all->pass);
            all->failed = done->emitted > done->accepted && drafted[done->accepted] == NOT_DRAWN;
            of->length += done->emitted, target->length = of->length - 1;
            if (of->given < 0 && draft->length > target->length) draft->length = target->length;
            done->draft_ran_s = draft->ran_s, done->target_ran_s = target->ran_s;
            draft->ran_s = target->ran_s = 0;
            done->over_s = now_s(), all->pass++;
        }
        wait_for_all(barrier, threads);
    }
}

/* Passes of Algorithm 1 on a chain, up to `most`, the end of the text, or one that a model is not ready for; at gamma 0
   steps of the target alone. If the draft ends the text, the target reads as many tokens as otherwise. Returns how
   many passes were over, and -1 if a row was not finite. */
int64_t speculate(Reader *draft, Reader *target, Passes *of, float *scratch, int64_t scratch_size, int64_t most_threads) {
    Speculation all = {draft, target, of, .scratch = {scratch, scratch_size, most_threads}};
    in_team(speculate_job, &all, most_threads);
    return all.failed ? -1 : all.pass;
}
