"""Keys of a recipe that its training does not read: given on the command line, each is an error."""

from collections.abc import Collection

from specbench.errors import UserError
from specbench.train.recipe_schema import Recipe

# Options of one kind, for kinds that share a part of the recipe; `recipe_checks` refuses the parts of other kinds.
OF_KIND = {"heads.layers": "medusa", "heads.narrow": "hydra", "block.confidence": "dspark"}
# Options of the target's outputs to learn from, and of an encoder-decoder's.
OF_OUTPUTS = ("greedy", "sampled", "outputs", "states")
OF_SOURCES = ("distill.generate_batch", "distill.per_source", "distill.references")
# What a model that training continues from has, and no key changes.
SHAPE = ("family", "d_model", "d_ff", "d_kv", "heads", "encoder_layers", "decoder_layers", "positions", "tied")


def require_used(recipe: Recipe, given: Collection[str]) -> None:
    """Check that training `recipe` reads each of the keys `given`. Raises UserError for the first that it ignores."""
    for key in sorted(given):
        if why := _why_unused(recipe, key):
            raise UserError(f"{key}: is not used here, for {why}; leave it out")


def _why_unused(recipe: Recipe, key: str) -> str | None:
    part, _, name = key.partition(".")
    if key in OF_KIND and OF_KIND[key] != recipe.kind:
        return f"it is an option of {OF_KIND[key]}, and this recipe trains {recipe.kind}"
    if part == "distill" and name not in ("target", "start_from") and recipe.distill.target is None:
        return "distill.target is not set"
    if part == "distill" and recipe.task == "lm" and name in OF_OUTPUTS and not recipe.data.completions:
        return "running text is trained on; rows of prompts, or data.completions=true, are completed by the target"
    if key in OF_SOURCES and recipe.task == "lm":
        return "distill.target is decoder-only"
    if part == "model" and name in SHAPE and recipe.model.start_from is not None:
        return "model.start_from is set, whose shape stays"
    return None
