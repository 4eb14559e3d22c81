/* Weights in 8 or 4 bits, and their products with rows. */

/* Whole levels, times a scale for each GROUP inputs of an output. A block of BLOCK outputs lies group after group: a vector of
   scales, in bf16 or fp16, and the levels, of 32 / size consecutive inputs of an output in a word, of which there are two
   vectors for the lower and the higher outputs in turn. Lane j of a vector belongs to output j, so that shifts in registers
   unpack them. The sums of a group are added up before its scale is applied. */
enum { GROUP = 32, MOST_LEVEL_ROWS = 4 };
static inline int64_t groups_of(int64_t k) { return (k + GROUP - 1) / GROUP; }

/* The bytes that `pack_levels` writes. */
int64_t levels_size(int64_t n, int64_t k, int64_t size) {
    return (n + BLOCK - 1) / BLOCK * groups_of(k) * (1 + 2 * size) * BYTES;
}

/* Where the level of input i goes in its word. With instructions for it products take four bytes of a word at once, and so of
   4 bits four levels with gaps between them. */
static inline int64_t shift_of(int64_t i, int64_t size) {
#ifdef BYTE_DOTS
    if (size == 4) return i % 4 * 8 + i / 4 % 2 * 4;
#endif
    return i % (32 / size) * size;
}

/* What is added to a level of `size` bits when it is stored: on x86 these instructions multiply unsigned by signed
   numbers, on ARM both are signed. */
static inline int32_t added_to_levels(const int size) {
#ifndef BYTE_DOTS
    return 0;
#else
#ifdef __aarch64__
    if (size == 8) return 0;
#endif
    return 1 << (size - 1);
#endif
}

/* Levels [N, K] of `size` bits, and scales [N, groups] of 16 bits, as blocks of outputs. */
void pack_levels(const int8_t *levels, const uint16_t *scales, void *out, int64_t n, int64_t k, int64_t size) {
    int64_t groups = groups_of(k), in_a_word = 32 / size;
    memset(out, 0, levels_size(n, k, size));
    for (int64_t row = 0; row < n; row++)
        for (int64_t g = 0; g < groups; g++) {
            int64_t lane = row % LANES, high = row % BLOCK / LANES;
            uint32_t *to = (uint32_t *)out + (row / BLOCK * groups + g) * (1 + 2 * size) * LANES;
            ((uint16_t *)to)[row % BLOCK] = scales[row * groups + g];
            for (int64_t i = 0; i < GROUP && g * GROUP + i < k; i++) {
                uint32_t level = (uint32_t)(levels[row * k + g * GROUP + i] + added_to_levels(size)) & ((1u << size) - 1);
                to[(1 + i / in_a_word * 2 + high) * LANES + lane] |= level << shift_of(i, size);
            }
        }
}

/* The bits of a level of a map's weights. */
static inline int64_t bits_of(const Instruction *it) { return it->level_bits & ~(int64_t)HALF_SCALES; }
