/* Scales of levels: of the outputs of a block one after another, in bf16, or in fp16 as the blocks Q8_0 and Q4_0 of GGUF files
   have them. */

/* Of `level_bits`, beside 8 or 4: scales are fp16. */
enum { HALF_SCALES = 64 };

/* The fp16 in the lowest 16 bits of each word; infinities and NaN do not occur. The product also scales what is subnormal. */
static inline vec of_half(bits words) {
    vec size = (vec)((words & 0x7fff) << 13) * 0x1p112f;
    return (vec)((bits)size | (words & 0x8000) << 16);
}

/* The scales of LANES outputs. */
static inline __attribute__((always_inline)) vec scales_at(const char *at, const int half) {
#ifdef __AVX512F__
    if (half) return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#endif
    bits words = __builtin_convertvector(*(const halves *)at, bits);
    return half ? of_half(words) : (vec)(words << 16);
}
