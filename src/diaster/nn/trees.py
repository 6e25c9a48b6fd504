"""Names for the leaves of nested states, by which they are written to files and found again."""

from __future__ import annotations

from typing import Any

import jax


def leaf_names(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf of a state with its dotted name."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]


def is_recorded(name: str) -> bool:
    """Whether a leaf is part of a run's result: what only further training needs is not."""
    return not any(part in ("elite", "optimizer") or part.endswith("_optimizer") for part in name.split("."))
