/* A program's instructions, and what one call of it reads. */

enum { EMBED, LOAD, STORE, NORM, LINEAR, WRITE, ATTEND, ADD, MUL, SCALE, SHIFT, POWER, RELU, SILU, GELU, GELU_TANH, TANH, PICK, ROTATE, DIVIDE, SPREAD };

/* Where a value lies: at `at` * L + `column` of the arena, `stride` floats from row to row. */
typedef struct { int64_t at, column, stride; } Ref;

typedef struct {
    int64_t op, width, inner, heads, key_heads, short_floats, barrier, centred;
    int64_t outside[4]; /* numbers of tensors from outside: what they are depends on the operation */
    int64_t slots, bias_texts, bias_heads, bias_rows; /* numbers of sizes from outside; the bias' are 1 or not */
    Ref out, x, y, z;
    const void *weight, *bias, *norm_weight, *norm_bias;
    double scale, epsilon;
    int64_t activation, residual, normed, period; /* of y's columns, which are repeated to x's width */
    int64_t level_bits; /* of a linear map's weights: 8, 4, or 0 where they are numbers of the model */
    int64_t short_cache; /* whether keys and values outside are bf16 */
} Instruction;

/* What consecutive rows of a step read from outside: tensors' data, and numbers of slots, texts, heads and rows. Its rows
   are the new tokens of one text after another's, as many of each. The tensors numbered `moved` depend on where these
   tokens are in their text; before a step their addresses are taken from `placed`. */
typedef struct {
    void **outside; const int64_t *sizes; int64_t texts, rows;
    const int64_t *moved; void *const *placed; int64_t moved_count;
    int64_t ids, results; /* which of the tensors are the new tokens and their logits, where the caller says */
} Part;

/* A program and what one call of it reads: sequences of their own lengths and buffers are a part each. */
typedef struct { const Instruction *program; int64_t count; const Part *parts; int64_t part_count, rows; } Step;

/* For each `part`, whose first row is number `first_row`. */
#define EACH_PART(step)                                                                                                \
    int64_t first_row = 0;                                                                                             \
    for (const Part *part = (step)->parts; part < (step)->parts + (step)->part_count; first_row += part->rows, part++)
