from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from diaster.nn.trees import filled, leaf_names


class Net(NamedTuple):
    weight: object
    bias: object


class State(NamedTuple):
    net: Net
    count: object


STATE = State(Net(jnp.ones((2, 3)), jnp.arange(3.0)), jnp.zeros((), jnp.int32))


def test_leaves_are_named_by_the_way_to_them() -> None:
    assert [name for name, _ in leaf_names(STATE)] == ["net.weight", "net.bias", "count"]
    assert [name for name, _ in leaf_names(STATE, ["count"])] == ["count"]


def test_a_state_is_filled_from_arrays_by_name_and_with_zeros_where_there_are_none() -> None:
    made = filled(STATE, {"net.bias": np.arange(3.0) + 1.0})
    assert made.net.bias.tolist() == [1.0, 2.0, 3.0]
    assert made.net.weight.shape == (2, 3) and not made.net.weight.any() and made.net.weight.strides == (0, 0)
    assert made.count.dtype == np.int32
