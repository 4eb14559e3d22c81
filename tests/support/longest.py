"""The files whose tests take longest, in which processes that share the tests begin: none works alone at the end."""

import pytest

LONGEST = (
    "kernels/test_kernels_c.py", "project/test_documented.py", "engine/test_architectures.py",
    "interop/certify/test_planted.py", "engine/native/test_native.py", "engine/native/test_passes_in_calls.py",
    "cli/test_run_drafts.py", "loading/test_sweep_models.py", "test_hostile_files.py",
    "analysis/findings/test_findings.py", "cli/test_sweep.py", "algorithm/test_batches.py",
    "records/test_where_passes_run.py", "engine/operations/test_fused.py", "interop/server/test_measure.py",
    "cli/test_tree_run.py", "cli/test_accept.py", "engine/test_experts.py", "methods/eagle/test_eagle.py",
    "engine/cuda/test_fake_cuda.py",
)  # fmt: skip


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests of these files before all others; those of a file stay in their order."""
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
