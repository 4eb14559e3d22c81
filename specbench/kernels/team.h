/* A team of threads: OpenMP's, whose threads torch also uses, or, if the compiler has no OpenMP, a team of our own. */

/* What each thread of a call runs, of `threads` in all; each thread writes what is its own. */
typedef void (*Job)(void *given, int thread, int threads);

/* The number of the next piece of work, if `claimed` are taken. */
static inline int64_t claim(int64_t *claimed) { return __atomic_fetch_add(claimed, 1, __ATOMIC_RELAXED); }

#ifdef _OPENMP
static void in_team(Job job, void *given, int64_t most_threads) {
    #pragma omp parallel num_threads(most_threads)
    job(given, omp_get_thread_num(), omp_get_num_threads());
}
#else
#include <pthread.h>
#ifdef __APPLE__
#include <pthread/qos.h>
#endif

enum { MOST_TEAM = 256, PATIENCE_US = 100 }; /* a sleeping thread takes some 50 us to wake */

/* One call at a time: `turn` is the number of calls times 2 * MOST_TEAM, plus how many threads take part in the last one. `left`
   of these have not finished it, and `asleep` wait at `woken`. The first thread of a call is its caller. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    uint64_t turn;
    int left, asleep, size, busy, is_watched;
    Job job; void *given;
} ours = {.lock = PTHREAD_MUTEX_INITIALIZER, .woken = PTHREAD_COND_INITIALIZER, .size = 1};

static int threads_in(uint64_t turn) { return turn % (2 * MOST_TEAM); }

static inline void pause_once(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* The turn after `seen`: waits a while, since calls follow each other, and then sleeps, since Python wants the core. */
static uint64_t next_turn(uint64_t seen) {
    uint64_t turn;
    for (int64_t end = now_us() + PATIENCE_US, tried = 1; ; tried++) {
        if ((turn = __atomic_load_n(&ours.turn, __ATOMIC_ACQUIRE)) != seen) return turn;
        pause_once();
        if (tried % 64 == 0 && now_us() > end) break;
    }
    pthread_mutex_lock(&ours.lock);
    __atomic_add_fetch(&ours.asleep, 1, __ATOMIC_SEQ_CST);
    while ((turn = __atomic_load_n(&ours.turn, __ATOMIC_SEQ_CST)) == seen) pthread_cond_wait(&ours.woken, &ours.lock);
    __atomic_sub_fetch(&ours.asleep, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&ours.lock);
    return turn;
}

typedef struct { int number; uint64_t seen; } Joining;

static void *serve(void *given) {
    Joining self = *(Joining *)given;
    free(given);
#ifdef __APPLE__
    pthread_set_qos_class_self_np(QOS_CLASS_USER_INTERACTIVE, 0); /* the fast cores */
#endif
    for (;;) {
        self.seen = next_turn(self.seen);
        if (self.number >= threads_in(self.seen)) continue;
        ours.job(ours.given, self.number, threads_in(self.seen));
        __atomic_sub_fetch(&ours.left, 1, __ATOMIC_RELEASE);
    }
    return 0;
}

/* In a forked child there are no threads but its own. */
static void forget_team(void) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
    ours.lock = lock, ours.woken = woken, ours.size = 1, ours.left = ours.asleep = ours.busy = 0;
}

/* Let the team have up to `wanted` threads: fewer if the system gives no more. */
static void grow_team(int wanted) {
    if (!ours.is_watched) pthread_atfork(0, 0, forget_team), ours.is_watched = 1;
    for (; ours.size < wanted; ours.size++) {
        Joining *joining = malloc(sizeof *joining);
        pthread_t id;
        if (!joining) return;
        *joining = (Joining){ours.size, ours.turn};
        if (pthread_create(&id, 0, serve, joining)) { free(joining); return; }
        pthread_detach(id);
    }
}

/* While the team works, a call from another thread is run by only that thread. */
static void in_team(Job job, void *given, int64_t most_threads) {
    int free_team = 0, threads = most_threads < MOST_TEAM ? (int)most_threads : MOST_TEAM;
    if (threads <= 1 || !__atomic_compare_exchange_n(&ours.busy, &free_team, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        job(given, 0, 1);
        return;
    }
    grow_team(threads);
    if (threads > ours.size) threads = ours.size;
    ours.job = job, ours.given = given;
    __atomic_store_n(&ours.left, threads - 1, __ATOMIC_RELAXED);
    __atomic_store_n(&ours.turn, (ours.turn / (2 * MOST_TEAM) + 1) * (2 * MOST_TEAM) + threads, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&ours.asleep, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&ours.lock);
        pthread_cond_broadcast(&ours.woken);
        pthread_mutex_unlock(&ours.lock);
    }
    job(given, 0, threads);
    for (int64_t waited = 0; __atomic_load_n(&ours.left, __ATOMIC_ACQUIRE); waited++) {
        if (waited >= 1 << 10) sched_yield();
        pause_once();
    }
    __atomic_store_n(&ours.busy, 0, __ATOMIC_RELEASE);
}
#endif
