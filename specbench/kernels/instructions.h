/* A program's instructions, and what one call of it reads. */

#define OPERATIONS(DO)                                                                                                 \
    DO(EMBED) DO(LOAD) DO(STORE) DO(NORM) DO(LINEAR) DO(WRITE) DO(ATTEND) DO(ADD) DO(MUL) DO(SCALE) DO(SHIFT) DO(POWER) \
    DO(RELU) DO(SILU) DO(GELU) DO(GELU_TANH) DO(TANH) DO(PICK) DO(ROTATE) DO(DIVIDE) DO(SPREAD) DO(GATHER)
#define IN_TURN(name) name,
enum { OPERATIONS(IN_TURN) };

/* Where a value lies: at `at` * L + `column` of the arena, `stride` floats from row to row. */
typedef struct { int64_t at, column, stride; } Ref;

/* An operation writes `width` columns of `out`, in bf16 rounded if `short_floats`, and reads:

   EMBED      rows of the table `weight` [inner, width], by the ids in outside[0]
   GATHER     the same of a table [inner, width] that is also a map's weight, as `pack` puts it
   LOAD       rows of outside[0]
   STORE      x, which goes to outside[0] instead of `out`
   NORM       x: of each of `heads` heads of `inner` columns, by `norm_weight` and `norm_bias` or null, `epsilon`, `centred`
   LINEAR     x [inner], by `weight` as `pack` or, with `level_bits`, `pack_levels` puts it, and `bias` or null; with
              `normed` x is normalised first, as by NORM; then `activation` (an operation, or -1); with `residual` y is added
   WRITE      x: `heads` heads of `inner` channels, which go to the cache outside[0], in `short_cache`'s numbers and with
              `slots` slots, at the slots in outside[1], instead of to `out`
   ATTEND     x: the queries of `heads` heads of `inner` channels, times `scale`; keys and values of `key_heads` heads: the
              caches outside[0] and [1], with `slots` slots, or if `slots` is -1 the columns y and z; outside[2]: what is
              added to scores, in fp32 of `bias_texts`, `bias_heads` and `bias_rows` entries, or -1; `bias`: a sink of each head,
              or null
   ADD, MUL   x and y, whose columns are repeated with `period`
   SCALE, SHIFT, POWER, DIVIDE    x, and `scale`: times it, plus it, to its power, by it
   RELU, SILU, GELU, GELU_TANH, TANH   x
   PICK       columns `weight` (int64; ~number: negated) of x [inner] and with `residual` of y after them
   SPREAD     x [inner], whose column i goes to column weight[i] (-1: nowhere); minus infinity elsewhere
   ROTATE     x times y, plus columns `weight` of x times z; y and z are repeated with `period`

   `outside` numbers a part's tensors, and `slots` and `bias_...` its sizes. With `barrier` all threads wait after it,
   unless each runs some rows from one attention to the next (step.h). */
typedef struct {
    int64_t op, width, inner, heads, key_heads, short_floats, barrier, centred;
    int64_t outside[4]; /* numbers of tensors from outside: what they are depends on the operation */
    int64_t slots, bias_texts, bias_heads, bias_rows; /* numbers of sizes from outside; the bias' are 1 or not */
    Ref out, x, y, z;
    const void *weight, *bias, *norm_weight, *norm_bias;
    double scale, epsilon;
    int64_t activation, residual, normed, period; /* of y's columns, which are repeated to x's width */
    int64_t level_bits; /* of a linear map's weights: 8 or 4, with HALF_SCALES; 0: they are numbers of the model */
    int64_t short_cache; /* whether keys and values outside are bf16 */
} Instruction;

/* What consecutive rows of a step read from outside: tensors' data, and numbers of slots, texts, heads and rows. Its rows
   are the new tokens of one text after another's, as many of each. The tensors numbered `moved` depend on where these
   tokens are in their text; before a step their addresses are taken from `placed`. */
typedef struct {
    void **outside; const int64_t *sizes; int64_t texts, rows;
    const int64_t *moved; void *const *placed; int64_t moved_count;
    int64_t ids, results; /* which of the tensors are the new tokens and their logits, if the caller says */
} Part;

/* A program and what one call of it reads. Each sequence, with its own length and buffers, is one part. */
typedef struct { const Instruction *program; int64_t count; const Part *parts; int64_t part_count, rows; } Step;

/* For each `part`, whose first row is number `first_row`. */
#define EACH_PART(step)                                                                                                \
    int64_t first_row = 0;                                                                                             \
    for (const Part *part = (step)->parts; part < (step)->parts + (step)->part_count; first_row += part->rows, part++)
