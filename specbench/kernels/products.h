/* Products of rows with packed weights: in vectors, or in matrix registers if the machine has them. */

/* Inputs come in pairs, and with tiles 32 at a time: `k` and the zeros that fill up the last of them. */
#ifdef TILES
enum { INPUTS = 32 };
#else
enum { INPUTS = 2 };
#endif
static inline int64_t filled_up(int64_t k) { return (k + INPUTS - 1) / INPUTS * INPUTS; }

/* The number of floats (bf16: of 16 bits) that `pack` writes. */
int64_t packed_size(int64_t n, int64_t k) { return (n + BLOCK - 1) / BLOCK * BLOCK * filled_up(k); }

/* Where the weight of output j of a block and input i goes, among the block's weights. In bf16 two share a word: two
   inputs of one output where pairs are multiplied and added at once, otherwise two outputs. */
static inline int64_t place(int64_t i, int64_t j, int64_t is_short) {
    if (!is_short) return i * BLOCK + j;
#ifdef BF16_PAIRS
    return (i / 2 * BLOCK + j) * 2 + i % 2;
#else
    return i * BLOCK + (j % LANES) * 2 + j / LANES;
#endif
}

/* Weights [N, K] as blocks of BLOCK outputs, input by input. */
void pack(const void *weight, void *out, int64_t n, int64_t k, int64_t is_short) {
    int64_t even = filled_up(k), blocks = (n + BLOCK - 1) / BLOCK;
    memset(out, 0, blocks * BLOCK * even * (is_short ? 2 : 4));
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < k; i++) {
            int64_t to = row / BLOCK * BLOCK * even + place(i, row % BLOCK, is_short);
            if (is_short) ((uint16_t *)out)[to] = ((const uint16_t *)weight)[row * k + i];
            else ((float *)out)[to] = ((const float *)weight)[row * k + i];
        }
}

/* Tiles, as (rows, blocks), whose sums, weights and an input fit the registers of this machine. The sums of a tile are
   at most MOST_SUMMED blocks. More rows than MOST_ROWS are cut into parts that differ by one: tiles of 5 rows and more
   have as many blocks as tiles of one row less, but for the largest, which have one.
   ..._ALONE: those that also read one block, the last of a map. */
#if defined(__AVX512F__) || defined(__aarch64__) /* 32 registers */
enum { MOST_ROWS = 8, MOST_BLOCKS = 4, MOST_SUMMED = 14 };
#define WIDE_TILES(T) T(wide, 1, 4) T(wide, 2, 4) T(wide, 3, 2) T(wide, 4, 2) T(wide, 5, 1) T(wide, 6, 1) T(wide, 7, 1) T(wide, 8, 1)
#define WIDE_ALONE(T) T(wide, 1, 1) T(wide, 2, 1) T(wide, 3, 1) T(wide, 4, 1)
#ifdef BF16_WIDENED /* two blocks at once come faster from memory */
#define SHORT_TILES(T) T(short, 1, 4) T(short, 2, 4) T(short, 3, 4) T(short, 4, 2) T(short, 5, 2) T(short, 6, 2) T(short, 7, 2) T(short, 8, 1)
#define SHORT_ALONE(T) T(short, 1, 1) T(short, 2, 1) T(short, 3, 1) T(short, 4, 1) T(short, 5, 1) T(short, 6, 1) T(short, 7, 1)
#else
#define SHORT_TILES(T) T(short, 1, 4) T(short, 2, 4) T(short, 3, 2) T(short, 4, 1) T(short, 5, 1) T(short, 6, 1) T(short, 7, 1) T(short, 8, 1)
#endif
#else /* 16. fp32 is limited by its loads, and gains nothing from the larger tiles */
enum { MOST_ROWS = 6, MOST_BLOCKS = 4, MOST_SUMMED = 6 };
#define WIDE_TILES(T) T(wide, 1, 4) T(wide, 2, 2) T(wide, 3, 1) T(wide, 4, 1) T(wide, 5, 1) T(wide, 6, 1)
#define WIDE_ALONE(T) T(wide, 1, 1) T(wide, 2, 1)
#define SHORT_TILES(T) T(short, 1, 4) T(short, 2, 3) T(short, 3, 2) T(short, 4, 1) T(short, 5, 1) T(short, 6, 1)
#endif
#ifndef SHORT_ALONE
#define SHORT_ALONE(T) T(short, 1, 1) T(short, 2, 1) T(short, 3, 1)
#endif

/* A product of `rows` rows of x and `blocks` blocks of weights: sums over inputs in order, each in a register; `x_stride` and
   `even` count the inputs' numbers. Sizes are known at compile time. */
#define PRODUCT_OF const void *all_x, int64_t x_stride, const void *weight, int64_t even, float *out

INLINED put_sums(const int rows, const int blocks, vec sum[][MOST_BLOCKS][2], float *out) {
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int b = 0; b < blocks; b++)
            UNROLLED for (int half = 0; half < 2; half++) *(vec *)(out + (r * blocks + b) * BLOCK + half * LANES) = sum[r][b][half];
}

/* Of fp32 numbers. */
INLINED wide_product(const int rows, const int blocks, PRODUCT_OF) {
    const float *x = all_x;
    vec sum[MOST_ROWS][MOST_BLOCKS][2];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int b = 0; b < blocks; b++) sum[r][b][0] = sum[r][b][1] = (vec){0};
    for (int64_t i = 0; i < even; i++)
        UNROLLED for (int b = 0; b < blocks; b++) {
            const float *w = (const float *)weight + (b * even + i) * BLOCK;
            vec low = *(const vec *)w, high = *(const vec *)(w + LANES);
            UNROLLED for (int r = 0; r < rows; r++) {
                sum[r][b][0] = add_product(sum[r][b][0], low, x[r * x_stride + i]);
                sum[r][b][1] = add_product(sum[r][b][1], high, x[r * x_stride + i]);
            }
        }
    put_sums(rows, blocks, sum, out);
}

/* Of bf16 weights. Inputs are also bf16, and taken in pairs, where pairs are multiplied, and otherwise fp32. */
#ifdef BF16_PAIRS
typedef uint16_t Input;
enum { SHORT_STEP = 2 };
#else
typedef float Input;
enum { SHORT_STEP = 1 };
#endif
INLINED short_product(const int rows, const int blocks, PRODUCT_OF) {
    const Input *x = all_x;
    vec sum[MOST_ROWS][MOST_BLOCKS][2];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int b = 0; b < blocks; b++) sum[r][b][0] = sum[r][b][1] = (vec){0};
    for (int64_t i = 0; i < even; i += SHORT_STEP)
        UNROLLED for (int b = 0; b < blocks; b++) {
            const uint16_t *w = (const uint16_t *)weight + (b * even + i) * BLOCK;
            /* keeps the compiler from holding inputs from block to block, which would push sums out of registers */
            if (rows > 1) __asm__ volatile("" : "+r"(x));
            if (rows > 1 || FETCHES_FOR_ONE) fetch_weights((const char *)w + PAGE, SHORT_STEP * BLOCK * sizeof(uint16_t));
#ifdef BF16_PAIRS
            __m512bh low = (__m512bh)_mm512_loadu_si512(w), high = (__m512bh)_mm512_loadu_si512(w + 2 * LANES);
            UNROLLED for (int r = 0; r < rows; r++) {
                int32_t two;
                memcpy(&two, x + r * x_stride + i, 4);
                __m512bh pair = (__m512bh)_mm512_set1_epi32(two);
                sum[r][b][0] = (vec)_mm512_dpbf16_ps((__m512)sum[r][b][0], low, pair);
                sum[r][b][1] = (vec)_mm512_dpbf16_ps((__m512)sum[r][b][1], high, pair);
            }
#else
            bits two = *(const bits *)w;
            vec low = (vec)(two << 16), high = (vec)(two & 0xffff0000u);
            UNROLLED for (int r = 0; r < rows; r++) {
                sum[r][b][0] = add_product(sum[r][b][0], low, x[r * x_stride + i]);
                sum[r][b][1] = add_product(sum[r][b][1], high, x[r * x_stride + i]);
            }
#endif
        }
    put_sums(rows, blocks, sum, out);
}

#define INSTANCE(kind, ROWS, BLOCKS)                                                                                   \
    static void kind##_##ROWS##x##BLOCKS(PRODUCT_OF) { kind##_product(ROWS, BLOCKS, all_x, x_stride, weight, even, out); }
WIDE_TILES(INSTANCE) WIDE_ALONE(INSTANCE) SHORT_TILES(INSTANCE) SHORT_ALONE(INSTANCE)

typedef void (*Product)(PRODUCT_OF);
#define ONE_BLOCK_OF(kind, ROWS, BLOCKS) kind##_##ROWS##x1,
#define TILE_OF(kind, ROWS, BLOCKS) kind##_##ROWS##x##BLOCKS,
#define BLOCKS_IN(kind, ROWS, BLOCKS) BLOCKS,
static const Product ONE_BLOCK[2][MOST_ROWS] = {{WIDE_TILES(ONE_BLOCK_OF)}, {SHORT_TILES(ONE_BLOCK_OF)}};
static const Product TILE[2][MOST_ROWS] = {{WIDE_TILES(TILE_OF)}, {SHORT_TILES(TILE_OF)}};
static const int BLOCKS_OF[2][MOST_ROWS] = {{WIDE_TILES(BLOCKS_IN)}, {SHORT_TILES(BLOCKS_IN)}};

/* How many rows a product reads at once, the last one perhaps fewer: `rows` in the fewest parts of at most `most`. */
static inline int64_t at_once(int64_t rows, int64_t most) {
    int64_t parts = (rows + most - 1) / most;
    return (rows + parts - 1) / parts;
}

/* Matrix registers (AMX): one instruction multiplies up to 16 rows of 32 inputs with the weights of 16 outputs, which lie as
   `pack` puts them for pairs, and takes as long for 16 rows as for one. So a product reads its weights at the speed of
   the cache they are in, whatever the number of rows, and one row is summed in the order of many. */
#ifdef TILES
enum { OF_A_TILE = 16, MOST_TILED = 2 * OF_A_TILE };
enum { TILE_DATA = 18, ASK = 0x1023 }; /* as Linux numbers them: a process asks before it uses these registers */
static int has_tiles;
__attribute__((constructor)) static void ask_for_tiles(void) { has_tiles = syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0; }

/* Shape this thread's registers for maps of `rows` rows: 0 to 3 for sums and 4 and 5 for inputs, of the first 16 rows
   and of the others, 6 and 7 for weights. */
static void shape_tiles(int64_t rows) {
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    int64_t few = at_once(rows, MOST_TILED), upper = few < OF_A_TILE ? few : OF_A_TILE, lower = few - upper;
    uint8_t of[] = {upper, upper, lower, lower, upper, lower, OF_A_TILE, OF_A_TILE};
    for (int i = 0; i < 8; i++) shape.rows[i] = of[i], shape.bytes[i] = of[i] ? LINE : 0;
    __asm__ volatile("ldtilecfg %0" : : "m"(shape)); /* GCC 12's intrinsic may lose what was written to `shape` */
}

static inline void release_tiles(void) { _tile_release(); }

/* The sums of `rows` rows of x and one block of weights. */
static void tiled(const uint16_t *x, int64_t x_stride, const void *weight, int64_t even, float *out, int64_t rows) {
    const char *w = weight, *upper = (const char *)x, *lower = (const char *)(x + OF_A_TILE * x_stride);
    const int64_t row = x_stride * 2, line = BLOCK * 4;
    __asm__ volatile("" : : : "memory"); /* GCC does not know that the loads below read memory */
    _tile_zero(0); _tile_zero(1);
    if (rows <= OF_A_TILE) {
        for (int64_t i = 0; i < even; i += INPUTS, upper += LINE, w += INPUTS / 2 * line) {
            _tile_loadd(4, upper, row);
            _tile_loadd(6, w, line); _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, w + LINE, line); _tile_dpbf16ps(1, 4, 7);
        }
    } else {
        _tile_zero(2); _tile_zero(3);
        for (int64_t i = 0; i < even; i += INPUTS, upper += LINE, lower += LINE, w += INPUTS / 2 * line) {
            _tile_loadd(4, upper, row); _tile_loadd(5, lower, row);
            _tile_loadd(6, w, line); _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(2, 5, 6);
            _tile_loadd(7, w + LINE, line); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, out + OF_A_TILE * BLOCK, line); _tile_stored(3, out + OF_A_TILE * BLOCK + LANES, line);
    }
    _tile_stored(0, out, line); _tile_stored(1, out + LANES, line);
}
#else
enum { has_tiles, MOST_TILED = MOST_ROWS };
static inline void shape_tiles(int64_t rows) {}
static inline void release_tiles(void) {}
static inline void tiled(const uint16_t *x, int64_t x_stride, const void *weight, int64_t even, float *out, int64_t rows) {}
#endif

/* Whether bf16 is multiplied in matrix registers. */
int64_t uses_tiles(void) { return has_tiles; }
