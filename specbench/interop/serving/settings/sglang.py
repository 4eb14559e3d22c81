"""SGLang: flags of `sglang.launch_server`."""

from specbench.interop.serving.settings.base import (
    ENCODER_DECODER,
    LOOKUP_DIFFERS,
    Recommended,
    ServingEngine,
    Settings,
    flags,
    no_schedule,
    require_rule,
    shell,
    weights_of_draft,
)


def settings(wanted: Recommended) -> Settings:
    """STANDALONE for a draft model, NGRAM for prompt lookup; a chain, not a tree (topk or breadth 1)."""
    require_rule(wanted, "SGLang", ("exact", "onehot"))
    verified = wanted.gamma + 1  # the newest token is read with the drafted tokens
    values: dict[str, object]
    notes = no_schedule(wanted, "SGLang")
    if wanted.kind == "lookup":
        values = {
            "--speculative-algorithm": "NGRAM",
            "--speculative-num-draft-tokens": verified,
            "--speculative-ngram-max-bfs-breadth": 1,
        }
        notes += [
            LOOKUP_DIFFERS,
            "NGRAM runs on CUDA and on CPU; it matches as long a suffix as its trie holds "
            "(--speculative-ngram-max-trie-depth), and its cache holds earlier requests too",
        ]
    else:
        draft = weights_of_draft(wanted, "SGLang")
        values = {"--speculative-algorithm": "STANDALONE", "--speculative-draft-model-path": draft.place}
        if draft.revision:
            values["--speculative-draft-model-revision"] = draft.revision
        values |= {
            "--speculative-num-steps": wanted.gamma,
            "--speculative-eagle-topk": 1,
            "--speculative-num-draft-tokens": verified,
        }
        if wanted.temperature > 0 and wanted.rule == "exact":
            notes.append(
                "T>0: STANDALONE drafts the argmax and accepts it with its p (rejection sampling with q is for EAGLE "
                "drafts alone); lossless, but its α is that of accept=onehot"
            )
    if wanted.encoder_decoder:
        notes.append(ENCODER_DECODER.format(engine="SGLang"))
    target = {"--model-path": wanted.target.place}
    if wanted.target.revision:
        target["--revision"] = wanted.target.revision
    return Settings(
        shell(["python3", "-m", "sglang.launch_server"], *flags(target), *flags(values)), values, notes=notes
    )


ENGINE = ServingEngine(
    "sglang",
    "SGLang",
    "main of 2026 (srt/arg_groups/speculative_hook.py, srt/server_args.py)",
    "https://docs.sglang.io/advanced_features/speculative_decoding.html",
    settings,
)
