/* Matrix registers (AMX) in plain C, for a processor that has AVX-512 with bf16 and no such registers. Included before the
   kernels, in a copy of which `shape_tiles` calls `emulated_shape` and the system is not asked for permission. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static __thread struct { uint8_t rows[8]; uint16_t bytes[8]; } emulated;
static __thread uint8_t emulated_tile[8][16][64];

/* As `ldtilecfg` reads it: 16 bytes, of which the first is the palette, then the tiles' bytes of a row, then their rows. */
static void emulated_shape(const void *shape) {
    memcpy(emulated.bytes, (const char *)shape + 16, sizeof emulated.bytes);
    memcpy(emulated.rows, (const char *)shape + 48, sizeof emulated.rows);
    memset(emulated_tile, 0, sizeof emulated_tile);
}

static void emulated_load(int tile, const void *from, int64_t stride) {
    for (int r = 0; r < emulated.rows[tile]; r++) memcpy(emulated_tile[tile][r], (const char *)from + r * stride, emulated.bytes[tile]);
}

static void emulated_store(int tile, void *to, int64_t stride) {
    for (int r = 0; r < emulated.rows[tile]; r++) memcpy((char *)to + r * stride, emulated_tile[tile][r], emulated.bytes[tile]);
}

static float emulated_wide(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, 2);
    uint32_t word = (uint32_t)half << 16;
    float made;
    memcpy(&made, &word, 4);
    return made;
}

/* The sums of even and of odd inputs are added to each other, and then to what was there. */
static void emulated_product(int to, int left, int right) {
    for (int m = 0; m < emulated.rows[to]; m++)
        for (int n = 0; n < emulated.bytes[to] / 4; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < emulated.bytes[left] / 4; k++) {
                const uint8_t *a = emulated_tile[left][m] + 4 * k, *b = emulated_tile[right][k] + 4 * n;
                even = fmaf(emulated_wide(a), emulated_wide(b), even), odd = fmaf(emulated_wide(a + 2), emulated_wide(b + 2), odd);
            }
            memcpy(&sum, emulated_tile[to][m] + 4 * n, 4);
            sum += even + odd;
            memcpy(emulated_tile[to][m] + 4 * n, &sum, 4);
        }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_zero(tile) memset(emulated_tile[tile], 0, sizeof emulated_tile[tile])
#define _tile_loadd(tile, from, stride) emulated_load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated_store(tile, to, stride)
#define _tile_dpbf16ps(to, left, right) emulated_product(to, left, right)
#define _tile_release() memset(&emulated, 0, sizeof emulated)
