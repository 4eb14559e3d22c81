/* Scales of levels: of two outputs in a word, in bf16, or in fp16 as the blocks Q8_0 and Q4_0 of GGUF files have them. */

/* Of `level_bits`, beside 8 or 4: scales are fp16. */
enum { HALF_SCALES = 64 };

/* The fp16 in the lowest 16 bits of each word; infinities and NaN do not occur. The product also scales what is subnormal. */
static inline vec of_half(bits words) {
    vec size = (vec)((words & 0x7fff) << 13) * 0x1p112f;
    return (vec)((bits)size | (words & 0x8000) << 16);
}

/* The scales of the lower and of the higher output in each word. */
static inline __attribute__((always_inline)) vec low_scales(bits words, const int half) {
    return half ? of_half(words) : (vec)(words << 16);
}
static inline __attribute__((always_inline)) vec high_scales(bits words, const int half) {
    return half ? of_half(words >> 16) : (vec)(words & 0xffff0000u);
}
