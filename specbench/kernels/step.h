/* A step: its instructions one after another, by a team of threads. */

/* The threads of a call wait for each other here, dozens of times per step: cheaper than OpenMP's own barrier. Between two waits
   `claimed` pieces of work have been taken, each by one thread. */
typedef struct { int arrived, turn; int64_t claimed; } Barrier;

static void wait_for_all(Barrier *barrier, int threads) {
    if (threads == 1) barrier->claimed = 0;
    if (threads == 1) return;
    int turn = __atomic_load_n(&barrier->turn, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&barrier->claimed, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t waited = 0; __atomic_load_n(&barrier->turn, __ATOMIC_ACQUIRE) == turn; waited++) {
        if (waited >= 1 << 10) sched_yield(); /* some 50 us: another thread has lost its core, and may want this one */
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Fetch the first weights that this thread reads of the next linear map. */
static void fetch_next(const Instruction *it, const Instruction *end, int thread, int threads) {
    while (it < end && it->op != LINEAR) it++;
    if (it == end) return;
    int64_t blocks = (it->width + BLOCK - 1) / BLOCK, first = blocks * thread / threads;
    int64_t size = block_bytes(it);
    int64_t bytes = (blocks * (thread + 1) / threads - first) * size;
    fetch((const char *)it->weight + first * size, bytes < AT_FIRST ? bytes : AT_FIRST);
}

/* Set the addresses that depend on the place in the text. */
static void place_parts(const Step *step) {
    for (const Part *part = step->parts; part < step->parts + step->part_count; part++)
        for (int64_t i = 0; i < part->moved_count; i++) part->outside[part->moved[i]] = part->placed[i];
}

/* x y + pick(x) z of some columns, for y and z with a period, by runs of columns whose picked ones also follow each
   other. */
static __attribute__((noinline)) void rotate(const Instruction *it, const float *x, const float *y, const float *z, float *out,
                                             int64_t rows, int64_t first, int64_t end) {
    const int64_t *columns = it->weight;
    for (int64_t i = first, n; i < end; i += n) {
        int64_t j = i % it->period, is_negative = columns[i] < 0, from = is_negative ? ~columns[i] : columns[i];
        for (n = 1; i + n < end && j + n < it->period && columns[i + n] == columns[i] + (is_negative ? -n : n);) n++;
        for (int64_t r = 0; r < rows; r++) {
            const float *straight = x + r * it->x.stride + i, *turned = x + r * it->x.stride + from;
            const float *cosine = y + r * it->y.stride + j, *sine = z + r * it->z.stride + j;
            for (int64_t c = 0; c < n; c += LANES) {
                int64_t some = n - c < LANES ? n - c : LANES;
                bits other = (bits)some_numbers(turned, c, some, 0);
                if (is_negative) other ^= 0x80000000u;
                vec sum = some_numbers(straight, c, some, 0) * some_numbers(cosine, c, some, 0);
                vec more = (vec)other * some_numbers(sine, c, some, 0);
                if (it->short_floats) sum = shortened(sum), more = shortened(more);
                sum += more;
                put(it->short_floats ? shortened(sum) : sum, out + r * it->out.stride + i + c, 0, some);
            }
        }
    }
}

/* Sums or products of `count` numbers each. */
static void both(const float *x, const float *y, float *out, int64_t count, int64_t op, int64_t is_short) {
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t some = count - i < LANES ? count - i : LANES;
        vec a = some_numbers(x, i, some, 0), b = some_numbers(y, i, some, 0), v = op == ADD ? a + b : a * b;
        put(is_short ? shortened(v) : v, out + i, 0, some);
    }
}

/* What a thread runs of an instruction: `rows` rows from `row` on, where their operands are in the arena, which columns are
   its own, and its room. */
typedef struct {
    const Step *step; const Instruction *it;
    float *out; const float *x, *y, *z;
    int64_t row, rows, first, end;
    float *scratch, *shared; Barrier *barrier;
    int thread, threads;
} Work;

/* For each row r of each `part` that is among the work's rows, as number `at` of these. */
#define EACH_ROW(w)                                                                                                    \
    EACH_PART((w)->step)                                                                                               \
        for (int64_t r = (w)->row > first_row ? (w)->row - first_row : 0, at = first_row + r - (w)->row;               \
             r < part->rows && at < (w)->rows; r++, at++)

/* Rows of a table, by the ids of new tokens, or of a tensor. */
static void load_rows(const Work *w) {
    const Instruction *it = w->it;
    const int64_t s = it->short_floats, first = w->first, count = w->end - w->first;
    EACH_ROW(w) {
        const void *read = part->outside[it->outside[0]];
        int64_t row = it->op == LOAD ? r : ((const int64_t *)read)[r];
        const char *from = it->op == LOAD ? read : it->weight;
        float *to = w->out + at * it->out.stride + first;
        if (it->op == EMBED && (uint64_t)row >= (uint64_t)it->inner) { /* no row of the table: NaN, which is refused */
            for (int64_t i = 0; i < count; i++) to[i] = NAN;
            continue;
        }
        from += (row * it->width + first) * (s ? 2 : 4);
        if (s) widen_all((const uint16_t *)from, to, count);
        else memcpy(to, from, count * sizeof(float));
    }
}

/* Rows of a packed table by the ids of new tokens; NaN if it has no such row. */
static void gather_rows(const Work *w) {
    const Instruction *it = w->it;
    const int64_t s = it->short_floats, even = filled_up(it->width);
    EACH_ROW(w) {
        const int64_t row = ((const int64_t *)part->outside[it->outside[0]])[r], is_there = (uint64_t)row < (uint64_t)it->inner;
        const int64_t block = is_there ? row / BLOCK * BLOCK * even : 0, j = is_there ? row % BLOCK : 0;
        float *to = w->out + at * it->out.stride;
        for (int64_t i = w->first; i < w->end; i++) {
            int64_t from = block + place(i, j, s);
            float v = s ? wide(((const uint16_t *)it->weight)[from]) : ((const float *)it->weight)[from];
            to[i] = is_there ? v : NAN;
        }
    }
}

static void store_rows(const Work *w) {
    const Instruction *it = w->it;
    const int64_t s = it->short_floats, first = w->first, count = w->end - w->first;
    EACH_ROW(w) {
        const float *from = w->x + at * it->x.stride + first;
        char *to = (char *)part->outside[it->outside[0]] + (r * it->width + first) * (s ? 2 : 4);
        if (s) take_short(from, (uint16_t *)to, count);
        else memcpy(to, from, count * sizeof(float));
    }
}

static void norm_heads(const Work *w) {
    const Instruction *it = w->it;
    const int64_t all = w->rows * it->heads;
    for (int64_t u = all * w->thread / w->threads; u < all * (w->thread + 1) / w->threads; u++) {
        int64_t r = u / it->heads, at = u % it->heads * it->inner;
        norm_rows(it, w->x + r * it->x.stride + at, it->x.stride, w->out + r * it->out.stride + at, 0, it->out.stride, it->inner, 1);
    }
}

static void map_linearly(const Work *w) {
    const Instruction *it = w->it;
    linear(it, w->x, it->x.stride, w->out, it->residual ? w->y : 0, w->rows, w->scratch, w->thread, w->threads);
    fetch_next(it + 1, w->step->program + w->step->count, w->thread, w->threads);
}

/* Columns of x, and of y if there is one. */
static void pick_columns(const Work *w) {
    const Instruction *it = w->it;
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t i = w->first; i < w->end; i++)
            w->out[r * it->out.stride + i] = picked(w->x + r * it->x.stride, it->residual ? w->y + r * it->y.stride : 0,
                                                    ((const int64_t *)it->weight)[i], it->inner);
}

/* Columns of x, each to its own place; minus infinity elsewhere. */
static void spread_columns(const Work *w) {
    const Instruction *it = w->it;
    for (int64_t r = 0; r < w->rows; r++) {
        float *to = w->out + r * it->out.stride;
        for (int64_t i = w->first; i < w->end; i++) to[i] = -INFINITY;
        for (int64_t i = 0; i < it->inner; i++) {
            int64_t place = ((const int64_t *)it->weight)[i];
            if (place >= w->first && place < w->end) to[place] = w->x[r * it->x.stride + i];
        }
    }
}

/* Heads of states to slots of their text's buffer. */
static void write_heads(const Work *w) {
    const Instruction *it = w->it;
    for (int64_t h = it->heads * w->thread / w->threads; h < it->heads * (w->thread + 1) / w->threads; h++) {
        EACH_ROW(w) {
            int64_t tokens = part->rows / part->texts, slots = part->sizes[it->slots];
            const float *from = w->x + at * it->x.stride + h * it->inner;
            int64_t to = ((r / tokens * it->heads + h) * slots + ((const int64_t *)part->outside[it->outside[1]])[r]) * it->inner;
            if (it->short_cache) take_short(from, (uint16_t *)part->outside[it->outside[0]] + to, it->inner);
            else memcpy((float *)part->outside[it->outside[0]] + to, from, it->inner * sizeof(float));
        }
    }
}

static void attend_heads(const Work *w) {
    const Instruction *it = w->it;
    if (!is_blocked(it)) {
        attend(it, w->step, w->x, w->y, w->z, w->out, w->scratch, w->thread, w->threads);
        return;
    }
    attend_blocks(it, w->step, w->x, w->out, w->scratch, w->shared, &w->barrier->claimed, w->thread, w->threads);
    if (!shares_blocks(it, w->step, w->threads)) return;
    wait_for_all(w->barrier, w->threads);
    add_blocks(it, w->step, w->x, w->out, w->scratch, w->shared, w->thread, w->threads);
}

/* Each column by itself, with a number or a column of y. */
static void by_column(const Work *w) {
    const Instruction *it = w->it;
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t i = w->first, j = w->first % it->period; i < w->end; i++, j = j + 1 == it->period ? 0 : j + 1) {
            float v = w->x[r * it->x.stride + i];
            switch (it->op) {
            case ADD: v += w->y[r * it->y.stride + j]; break;
            case MUL: v *= w->y[r * it->y.stride + j]; break;
            case SCALE: v *= (float)it->scale; break;
            case DIVIDE: v /= (float)it->scale; break;
            case SHIFT: v += (float)it->scale; break;
            default: v = power(v, (float)it->scale);
            }
            w->out[r * it->out.stride + i] = rounded(v, it->short_floats);
        }
}

static void add_or_multiply(const Work *w) {
    const Instruction *it = w->it;
    if (it->period != it->width) {
        by_column(w);
        return;
    }
    for (int64_t r = 0; r < w->rows; r++)
        both(w->x + r * it->x.stride + w->first, w->y + r * it->y.stride + w->first, w->out + r * it->out.stride + w->first,
             w->end - w->first, it->op, it->short_floats);
}

static void activate_columns(const Work *w) {
    const Instruction *it = w->it;
    for (int64_t r = 0; r < w->rows; r++)
        activate_all(w->x + r * it->x.stride + w->first, w->out + r * it->out.stride + w->first, w->end - w->first, it->op, it->short_floats);
}

static void run_instruction(const Work *w) {
    switch (w->it->op) {
    case EMBED: case LOAD: load_rows(w); break;
    case GATHER: gather_rows(w); break;
    case STORE: store_rows(w); break;
    case NORM: norm_heads(w); break;
    case LINEAR: map_linearly(w); break;
    case PICK: pick_columns(w); break;
    case SPREAD: spread_columns(w); break;
    case ROTATE: rotate(w->it, w->x, w->y, w->z, w->out, w->rows, w->first, w->end); break;
    case WRITE: write_heads(w); break;
    case ATTEND: attend_heads(w); break;
    case ADD: case MUL: add_or_multiply(w); break;
    case SCALE: case SHIFT: case POWER: case DIVIDE: by_column(w); break;
    default: activate_columns(w);
    }
}

/* An instruction, for rows `work->row` on. */
static void run_on(Work *work, const Instruction *it, float *arena) {
    const int64_t all = work->step->rows, row = work->row;
    work->it = it, work->first = it->width * work->thread / work->threads, work->end = it->width * (work->thread + 1) / work->threads;
    work->out = arena + it->out.at * all + it->out.column + row * it->out.stride;
    work->x = arena + it->x.at * all + it->x.column + row * it->x.stride;
    work->y = arena + it->y.at * all + it->y.column + row * it->y.stride;
    work->z = arena + it->z.at * all + it->z.column + row * it->z.stride;
    run_instruction(work);
}

/* How many rows of a step a thread runs at a time, through all instructions between two attentions: few enough that they stay
   in its second cache and that all threads end at the same time; 0: threads divide each instruction's outputs, as they do if
   there are few rows, and for matrix registers, which need each weight from nearby for more rows than that. */
enum { LEAST_AT_A_TIME = 16, MOST_AT_A_TIME = 32, PIECES = 4 };
static int64_t rows_at_a_time(const Step *step, int threads) {
    int64_t rows = step->rows / ((int64_t)threads * PIECES);
    if (rows < LEAST_AT_A_TIME || (has_tiles && step->program->short_floats)) return 0;
    return rows < MOST_AT_A_TIME ? rows / 8 * 8 : MOST_AT_A_TIME;
}

static void run_step(const Step *step, float *arena, float *scratch, float *shared, Barrier *barrier, int thread, int threads) {
    const int64_t rows = step->rows, at_a_time = rows_at_a_time(step, threads), is_tiled = has_tiles && step->program->short_floats;
    const Instruction *last = step->program + step->count;
    if (is_tiled) shape_tiles(rows);
    for (const Instruction *it = step->program, *next; it < last; it = next) {
        Work work = {step, .rows = rows, .scratch = scratch, .shared = shared, .barrier = barrier, .thread = thread, .threads = threads};
        next = it + 1;
        if (!at_a_time || it->op == ATTEND) {
            run_on(&work, it, arena);
            if (it->barrier) wait_for_all(barrier, threads);
            continue;
        }
        while (next < last && next->op != ATTEND) next++;
        work.thread = 0, work.threads = 1;
        for (int64_t row; (row = claim(&barrier->claimed) * at_a_time) < rows;) {
            work.row = row, work.rows = rows - row < at_a_time ? rows - row : at_a_time;
            for (const Instruction *each = it; each < next; each++) run_on(&work, each, arena);
        }
        wait_for_all(barrier, threads);
    }
    if (is_tiled) release_tiles(); /* torch's own kernels also shape them */
}

/* Room of a call: `size` floats for each thread, and behind them what they share. */
typedef struct { float *floats; int64_t size, most_threads; } Scratch;
static inline float *own_scratch(const Scratch *scratch, int thread) { return scratch->floats + thread * scratch->size; }
static inline float *shared_scratch(const Scratch *scratch) { return scratch->floats + scratch->most_threads * scratch->size; }

typedef struct { const Step *step; float *arena; Scratch scratch; Barrier barrier; } Run;
static void run_job(void *given, int thread, int threads) {
    Run *of = given;
    run_step(of->step, of->arena, own_scratch(&of->scratch, thread), shared_scratch(&of->scratch), &of->barrier, thread, threads);
}

/* Run a step. `scratch` has `scratch_size` floats for each thread, and behind them what they share. */
void run(const Step *step, float *arena, float *scratch, int64_t scratch_size, int64_t most_threads) {
    Run of = {step, arena, {scratch, scratch_size, most_threads}, {0}};
    place_parts(step);
    in_team(run_job, &of, most_threads);
}
