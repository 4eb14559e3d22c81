/* The numbers of operations, and sizes and places in structures, which `structures.py` has to share: compared at load. */

typedef struct { const char *name; int64_t number; } Laid;
#define NUMBER(operation) {#operation, operation},
#define SIZE(type) {#type, sizeof(type)}
#define AT(type, field) {#type "." #field, offsetof(type, field)}
static const Laid LAYOUT[] = {
    OPERATIONS(NUMBER) KINDS(NUMBER)
    SIZE(Ref), AT(Ref, at), AT(Ref, column), AT(Ref, stride),
    SIZE(Instruction), AT(Instruction, op), AT(Instruction, width), AT(Instruction, inner), AT(Instruction, heads),
    AT(Instruction, key_heads), AT(Instruction, short_floats), AT(Instruction, barrier), AT(Instruction, centred),
    AT(Instruction, outside), AT(Instruction, slots), AT(Instruction, bias_texts), AT(Instruction, bias_heads),
    AT(Instruction, bias_rows), AT(Instruction, out), AT(Instruction, x), AT(Instruction, y), AT(Instruction, z),
    AT(Instruction, weight), AT(Instruction, bias), AT(Instruction, norm_weight), AT(Instruction, norm_bias),
    AT(Instruction, scale), AT(Instruction, epsilon), AT(Instruction, activation), AT(Instruction, residual),
    AT(Instruction, normed), AT(Instruction, period), AT(Instruction, level_bits), AT(Instruction, short_cache),
    SIZE(Part), AT(Part, outside), AT(Part, sizes), AT(Part, texts), AT(Part, rows), AT(Part, moved),
    AT(Part, placed), AT(Part, moved_count), AT(Part, ids), AT(Part, results),
    SIZE(Step), AT(Step, program), AT(Step, count), AT(Step, parts), AT(Step, part_count), AT(Step, rows),
    SIZE(Sampling), AT(Sampling, temperature), AT(Sampling, top_p), AT(Sampling, top_k),
    SIZE(Choice), AT(Choice, logits), AT(Choice, short_floats), AT(Choice, stride), AT(Choice, vocabulary),
    AT(Choice, how), AT(Choice, uniforms), AT(Choice, rows), AT(Choice, tokens), AT(Choice, ends),
    AT(Choice, end_count),
    SIZE(Reader), AT(Reader, steps), AT(Reader, placed), AT(Reader, most), AT(Reader, length), AT(Reader, capacity),
    AT(Reader, arena), AT(Reader, logits), AT(Reader, choice), AT(Reader, ran_s),
    SIZE(Pass), AT(Pass, drafted), AT(Pass, accepted), AT(Pass, emitted), AT(Pass, drafted_s), AT(Pass, verified_s),
    AT(Pass, over_s), AT(Pass, draft_ran_s), AT(Pass, target_ran_s),
    SIZE(Rule), AT(Rule, kind), AT(Rule, beta), AT(Rule, lenience), AT(Rule, epsilon), AT(Rule, delta), AT(Rule, alpha),
    SIZE(Chain), AT(Chain, p), AT(Chain, q), AT(Chain, drafted), AT(Chain, count), AT(Chain, n), AT(Chain, trials),
    AT(Chain, nexts), AT(Chain, least), AT(Chain, room),
    SIZE(Passes), AT(Passes, tokens), AT(Passes, length), AT(Passes, end), AT(Passes, gamma), AT(Passes, most),
    AT(Passes, given), AT(Passes, rule), AT(Passes, trials), AT(Passes, nexts), AT(Passes, least), AT(Passes, room), AT(Passes, best),
    AT(Passes, done), AT(Passes, drafted),
    SIZE(Experts), AT(Experts, up), AT(Experts, down), AT(Experts, up_bias), AT(Experts, down_bias),
    AT(Experts, experts), AT(Experts, width), AT(Experts, inner), AT(Experts, short_floats), AT(Experts, activation),
    AT(Experts, clamped), AT(Experts, alpha), AT(Experts, limit),
};

/* The name of number `at` of them, and the number; null after the last. */
const char *layout(int64_t at, int64_t *number) {
    if (at >= (int64_t)(sizeof LAYOUT / sizeof *LAYOUT)) return 0;
    *number = LAYOUT[at].number;
    return LAYOUT[at].name;
}
