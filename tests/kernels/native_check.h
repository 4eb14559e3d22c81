/* What the checks of the kernels share. Compiled with -DKERNELS='"path of kernels.c"'. */
#include KERNELS
#include <stdio.h>
#include <stdlib.h>

static int failed = 0;
static float noise(void) { return (float)(rand() % 2001 - 1000) / 1000; }
static float *floats(int64_t count, int64_t s) {
    float *made = malloc(count * sizeof(float)); /* exactly as long as it is: reading past it is an error */
    for (int64_t i = 0; i < count; i++) made[i] = rounded(noise(), s);
    return made;
}
static void *weights_of(const float *v, int64_t count, int64_t s) {
    void *made = malloc(count * (s ? 2 : 4));
    if (s) shorten_all(v, made, count); else memcpy(made, v, count * sizeof(float));
    return made;
}
static void compare_within(const char *what, float found, float wanted, float most, int64_t a, int64_t b) {
    if (fabsf(found - wanted) <= most) return;
    if (failed++ < 10) printf("%s [%ld, %ld]: %g, not %g\n", what, (long)a, (long)b, found, wanted);
}
static void compare(const char *what, float found, float wanted, float near, int64_t a, int64_t b) {
    compare_within(what, found, wanted, near * (1 + fabsf(wanted)), a, b);
}
