"""Names for the leaves of nested states, by which they are written to files and found again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


def leaf_names(tree: Any, fields: Sequence[str] | None = None) -> list[tuple[str, Any]]:
    """Every leaf of a state with its dotted name; on request, those of some of its fields alone."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]
    return [(name, leaf) for name, leaf in named if fields is None or name.split(".")[0] in fields]
