/* A step: its instructions one after another, by a team of threads. */

/* Where the threads of a call wait for each other, dozens of times a step: cheaper than OpenMP's own barrier. */
typedef struct { int arrived, turn; } Barrier;

static void wait_for_all(Barrier *barrier, int threads) {
    if (threads == 1) return;
    int turn = __atomic_load_n(&barrier->turn, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == threads) {
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

/* x y + pick(x) z of some columns, where y and z have a period: by columns whose picked ones follow each other, too. */
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

static void run_step(const Step *step, float *arena, float *scratch, float *shared, Barrier *barrier, int thread, int threads) {
    int64_t rows = step->rows, is_tiled = has_tiles && step->program->short_floats;
    if (is_tiled) shape_tiles(rows);
    for (const Instruction *it = step->program; it < step->program + step->count; it++) {
        int64_t s = it->short_floats, width = it->width;
        float *out = arena + it->out.at * rows + it->out.column;
        const float *x = arena + it->x.at * rows + it->x.column, *y = arena + it->y.at * rows + it->y.column;
        const float *z = arena + it->z.at * rows + it->z.column;
        int64_t first = width * thread / threads, end = width * (thread + 1) / threads, stride = it->x.stride;
        switch (it->op) {
        case EMBED: case LOAD: { /* rows of a table, or of a tensor */
            EACH_PART(step)
                for (int64_t r = 0; r < part->rows; r++) {
                    const void *read = part->outside[it->outside[0]];
                    int64_t row = it->op == LOAD ? r : ((const int64_t *)read)[r];
                    const char *from = it->op == LOAD ? read : it->weight;
                    float *to = out + (first_row + r) * it->out.stride + first;
                    if (it->op == EMBED && (uint64_t)row >= (uint64_t)it->inner) { /* no row of the table: NaN, which is refused */
                        for (int64_t i = 0; i < end - first; i++) to[i] = NAN;
                        continue;
                    }
                    from += (row * width + first) * (s ? 2 : 4);
                    if (s) widen_all((const uint16_t *)from, to, end - first);
                    else memcpy(to, from, (end - first) * sizeof(float));
                }
            break;
        }
        case STORE: {
            EACH_PART(step)
                for (int64_t r = 0; r < part->rows; r++) {
                    const float *from = x + (first_row + r) * stride + first;
                    char *to = (char *)part->outside[it->outside[0]] + (r * width + first) * (s ? 2 : 4);
                    if (s) take_short(from, (uint16_t *)to, end - first);
                    else memcpy(to, from, (end - first) * sizeof(float));
                }
            break;
        }
        case NORM:
            for (int64_t u = rows * it->heads * thread / threads; u < rows * it->heads * (thread + 1) / threads; u++) {
                int64_t r = u / it->heads, at = u % it->heads * it->inner;
                norm_rows(it, x + r * stride + at, stride, out + r * it->out.stride + at, 0, it->out.stride, it->inner, 1);
            }
            break;
        case LINEAR:
            linear(it, x, stride, out, it->residual ? y : 0, rows, scratch, thread, threads);
            fetch_next(it + 1, step->program + step->count, thread, threads);
            break;
        case PICK: /* columns of x, and of y if there is one */
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = first; i < end; i++)
                    out[r * it->out.stride + i] = picked(x + r * stride, it->residual ? y + r * it->y.stride : 0,
                                                         ((const int64_t *)it->weight)[i], it->inner);
            break;
        case SPREAD: /* columns of x, each to its own place; minus infinity elsewhere */
            for (int64_t r = 0; r < rows; r++) {
                float *to = out + r * it->out.stride;
                for (int64_t i = first; i < end; i++) to[i] = -INFINITY;
                for (int64_t i = 0; i < it->inner; i++) {
                    int64_t place = ((const int64_t *)it->weight)[i];
                    if (place >= first && place < end) to[place] = x[r * stride + i];
                }
            }
            break;
        case ROTATE: /* x y + pick(x) z, where y and z have a period */
            rotate(it, x, y, z, out, rows, first, end);
            break;
        case WRITE: { /* heads of states to slots of their text's buffer */
            EACH_PART(step) {
                int64_t tokens = part->rows / part->texts, slots = part->sizes[it->slots];
                const int64_t *slot = part->outside[it->outside[1]];
                for (int64_t h = it->heads * thread / threads; h < it->heads * (thread + 1) / threads; h++)
                    for (int64_t r = 0; r < part->rows; r++) {
                        const float *from = x + (first_row + r) * stride + h * it->inner;
                        int64_t at = ((r / tokens * it->heads + h) * slots + slot[r]) * it->inner;
                        if (it->short_cache) take_short(from, (uint16_t *)part->outside[it->outside[0]] + at, it->inner);
                        else memcpy((float *)part->outside[it->outside[0]] + at, from, it->inner * sizeof(float));
                    }
            }
            break;
        }
        case ATTEND:
            if (is_blocked(it)) {
                attend_blocks(it, step, x, out, scratch, shared, thread, threads);
                if (shares_blocks(it, step, threads)) {
                    wait_for_all(barrier, threads);
                    add_blocks(it, step, x, out, scratch, shared, thread, threads);
                }
            } else attend(it, step, x, y, z, out, scratch, thread, threads);
            break;
        case ADD: case MUL:
            if (it->period == width) {
                for (int64_t r = 0; r < rows; r++)
                    both(x + r * stride + first, y + r * it->y.stride + first, out + r * it->out.stride + first, end - first, it->op, s);
                break;
            } /* fall through */
        case SCALE: case SHIFT: case POWER: case DIVIDE:
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = first, j = first % it->period; i < end; i++, j = j + 1 == it->period ? 0 : j + 1) {
                    float v = x[r * stride + i];
                    switch (it->op) {
                    case ADD: v += y[r * it->y.stride + j]; break;
                    case MUL: v *= y[r * it->y.stride + j]; break;
                    case SCALE: v *= (float)it->scale; break;
                    case DIVIDE: v /= (float)it->scale; break;
                    case SHIFT: v += (float)it->scale; break;
                    default: v = power(v, (float)it->scale);
                    }
                    out[r * it->out.stride + i] = rounded(v, s);
                }
            break;
        default:
            for (int64_t r = 0; r < rows; r++) {
                activate_all(x + r * stride + first, out + r * it->out.stride + first, end - first, it->op);
                if (s) round_all(out + r * it->out.stride + first, end - first);
            }
        }
        if (it->barrier) wait_for_all(barrier, threads);
    }
    if (is_tiled) release_tiles(); /* torch's own kernels shape them, too */
}

static int team(int *threads) {
#ifdef _OPENMP
    *threads = omp_get_num_threads();
    return omp_get_thread_num();
#else
    *threads = 1;
    return 0;
#endif
}

/* Run a step. `scratch` has `scratch_size` floats for each thread, and behind them what they share. */
void run(const Step *step, float *arena, float *scratch, int64_t scratch_size, int64_t most_threads) {
    Barrier barrier = {0, 0};
    place_parts(step);
    #pragma omp parallel num_threads(most_threads)
    {
        int threads, thread = team(&threads);
        run_step(step, arena, scratch + thread * scratch_size, scratch + most_threads * scratch_size, &barrier, thread, threads);
    }
}
