"""A decoding step of ours and of llama.cpp on one GGUF file, in turn.

    python experiments/steps_beside_llama.py FILE.gguf SOURCE LIBRARIES [TOKENS ...]

SOURCE is llama.cpp's source (for its headers), LIBRARIES the folder of libllama.so. After each of some prompts of
TOKENS tokens (default: 128 and 512) both write greedily, each with its default cache. Prompts are not timed.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from specbench.algorithm.decoding import DecodingSpec, autoregressive
from specbench.bench.timing import in_turn, times_faster
from specbench.config.model import ModelConfig
from specbench.engine.session import Prompt
from specbench.engine.weights.load import load_model
from specbench.sampling import Sampling
from specbench.text.tokenizer import load_tokenizer

PROMPTS, REPEATS, STEPS, THREADS = 6, 3, 16, os.cpu_count() or 1
REST_S = 0.03  # until the threads of the other have gone to sleep
THEIRS = r"""
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void silent(enum ggml_log_level level, const char *text, void *data) {}
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static struct llama_context *context;
static int vocabulary;
static int best(void) {
    const float *logits = llama_get_logits_ith(context, -1);
    int found = 0;
    for (int i = 1; i < vocabulary; i++) if (logits[i] > logits[found]) found = i;
    return found;
}
static int read_on(int *tokens, int count) {
    if (llama_decode(context, llama_batch_get_one(tokens, count))) exit(3);
    return best();
}

int main(int count, char **words) { /* FILE THREADS SLOTS; then lines: steps, tokens of the prompt, each of them */
    llama_log_set(silent, 0), llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(words[1], llama_model_default_params());
    struct llama_context_params of = llama_context_default_params();
    of.n_threads = of.n_threads_batch = atoi(words[2]), of.n_ctx = of.n_batch = atoi(words[3]);
    if (!model || !(context = llama_init_from_model(model, of))) return 1;
    vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int steps, length; scanf("%d %d", &steps, &length) == 2;) {
        int *tokens = malloc((length + steps + 1) * sizeof(int));
        for (int i = 0; i < length; i++) if (scanf("%d", tokens + i) != 1) return 2;
        llama_memory_clear(llama_get_memory(context), true);
        int *written = tokens + length;
        written[0] = read_on(tokens, length);
        double began = now();
        for (int i = 0; i < steps; i++) written[i + 1] = read_on(written + i, 1);
        printf("%.9f", now() - began);
        for (int i = 1; i <= steps; i++) printf(" %d", written[i]);
        printf("\n"), fflush(stdout), free(tokens);
    }
}
"""


def started(file: str, source: Path, libraries: Path, slots: int, folder: str) -> "subprocess.Popen[str]":
    """llama.cpp at `file`: it answers a line of numbers with seconds and tokens."""
    code, program = Path(folder, "steps.c"), Path(folder, "steps")
    code.write_text(THEIRS)
    headers = [f"-I{source / place}" for place in ("include", "ggml/include")]
    linked = [f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries},-rpath-link,{libraries}"]
    subprocess.run(["cc", "-O2", *headers, str(code), "-o", str(program), *linked], check=True)
    words = [str(program), file, str(THREADS), str(slots)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main(file: str, source: Path, libraries: Path, lengths: list[int]) -> None:
    """Print a line for each length."""
    torch.set_num_threads(THREADS)
    config, device = ModelConfig(path=file), torch.device("cpu")
    vocabulary = load_tokenizer(config, "target")
    model = load_model(config, "target", vocabulary, torch.float32, device, "native", numerics="invariant")
    model.eos_ids = frozenset()
    text = "\n".join(one.read_text() for one in sorted(Path(__file__).parents[1].glob("docs/*.md")))
    ids = vocabulary.ids(text[: 8 * PROMPTS * max(lengths)])
    spec = DecodingSpec.algorithm_1(Sampling(temperature=0.0), STEPS + 1)
    with tempfile.TemporaryDirectory() as folder:
        engine = started(file, source, libraries, max(lengths) + STEPS + 1, folder)
        assert engine.stdin is not None and engine.stdout is not None
        for length in lengths:
            prompts = [ids[at * length : (at + 1) * length] for at in range(PROMPTS)]

            def ours(index: int, prompts: list[list[int]] = prompts) -> tuple[float, list[int]]:
                time.sleep(REST_S)
                trace = autoregressive(model, Prompt((), tuple(prompts[index])), spec, torch.Generator())
                return sum(trace.steps_s[1:]), trace.tokens[1:]  # the first ends the prompt

            def theirs(index: int, prompts: list[list[int]] = prompts) -> tuple[float, list[int]]:
                assert engine.stdin is not None and engine.stdout is not None
                time.sleep(REST_S)
                print(STEPS, length, *prompts[index], file=engine.stdin, flush=True)  # noqa: B023
                seconds, *tokens = engine.stdout.readline().split()
                return float(seconds), [int(token) for token in tokens]

            found = in_turn({"ours": ours, "theirs": theirs}, PROMPTS, REPEATS)
            a, b = found["ours"], found["theirs"]
            times = (1e3 * sum(one.seconds for one in each) / PROMPTS / STEPS for each in (a, b))
            ratio = times_faster(a, b)
            same = sum(one.tokens == other.tokens for one, other in zip(a, b, strict=True))
            print(
                f"{Path(file).name}, {length} tokens, {THREADS} threads: ours {next(times):.2f} ms, theirs "
                f"{next(times):.2f} ms, ratio {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]; same tokens after "
                f"{same} of {PROMPTS} prompts",
                flush=True,
            )
        engine.stdin.close()
        engine.wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), [int(one) for one in sys.argv[4:]] or [128, 512])
