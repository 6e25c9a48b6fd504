"""Names for the leaves of nested states, by which they are written to files and found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np


def leaf_names(tree: Any, fields: Sequence[str] | None = None) -> list[tuple[str, Any]]:
    """Every leaf of a state with its dotted name; on request, those of some of its fields alone, of any depth."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]
    return [(name, leaf) for name, leaf in named if fields is None or any(_is_in(name, field) for field in fields)]


def _is_in(name: str, field: str) -> bool:
    return name == field or name.startswith(f"{field}.")


def filled(template: Any, arrays: Mapping[str, Any]) -> Any:
    """A state of the template's form from arrays by name. Where there is none, a zero that takes no memory stands."""
    leaves = [
        arrays[name] if name in arrays else np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        for name, leaf in leaf_names(template)
    ]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)
