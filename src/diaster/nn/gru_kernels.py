"""The recurrence of `nets.GRU` over long rows on NVIDIA GPUs: one kernel per time step instead of four to six.

The compiler's own loop runs a product, one or two pointwise kernels and a copy of whatever is kept, for every step and
in each direction; starting all these takes longer than what they compute. Here a step is one kernel (Pallas, on
Triton), and arrays over time are written where they stand: a loop carries them, and its kernels return the very buffers
they were given. Nothing is shared between the programs of a kernel, so none waits for another.

What is kept for the gradient are the factors by which a state follows its gates. On the way back they are multiplied,
in place, by the gradients of the states; the products are what the step before and the weights' gradients need.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.errors import DiasterError
from diaster.nn.kernels_here import CompilerParams, computing_device, is_power_of_two, pl, why_not_compiled
from diaster.nn.nets import GRU

States = tuple[Array, ...]  # V of [T, B, H], one for each way of cutting
Kept = tuple[Array, Array]  # factors of the gates' sums  # [T, B, 4H]; 1 − update gate  # [T, B, H]

# The gates' sums in the order in which they are kept: reset, update, the candidate's hidden one, its input one.
# The first three come of the state before; the first two and the last come of the inputs.
N_KEPT = 4


class Blocks(NamedTuple):
    """What one program of a kernel computes."""

    rows: int
    columns: int
    depth: int  # of each product in its sum of products
    warps: int = 4
    stages: int = 3  # how many of those products are under way


class Kernels(NamedTuple):
    """How to compute; part of what is compiled. The defaults were the fastest of some thirty on an H200."""

    forward: Blocks = Blocks(rows=32, columns=64, depth=64)
    backward: Blocks = Blocks(rows=32, columns=32, depth=128, warps=8)
    operand: str = "bfloat16"  # of products: this, or float32 with the precision of TF32. Sums and states are float32.
    kept: str = "bfloat16"  # what is kept for the gradient: this or float32
    unroll: int = 37
    interpret: bool = False  # without Triton, on any device


def kernels_for(cell: GRU, start: Array) -> Kernels:
    """How to compute where JAX computes now; a sentence where that cannot be done. start  # [T, V, B]"""
    how, device = Kernels(), computing_device()
    if device.platform != "gpu":
        raise _impossible(f"learning runs on the {device.platform}")
    if not fits(cell, start, how):
        raise _impossible(f"{start.shape[-1]} rows of {cell.hidden.weight.shape[0]} units are no whole blocks")
    why = _why_not_compiled(jax.tree.map(_form, cell), start.shape[1:], how, device)
    if why:
        raise _impossible(why)
    return how


def _impossible(why: str) -> DiasterError:
    return DiasterError(
        f"method.precision=bfloat16 cannot be had here ({why}); it needs an NVIDIA GPU that JAX's Pallas knows, and "
        "batch_episodes and hidden that are multiples of 32 and 128; use --method.precision float32."
    )


@cache
def _why_not_compiled(cell: GRU, ways_and_rows: tuple[int, ...], how: Kernels, device: Any) -> str:
    """What the compiler says of two steps; nothing if it can."""
    n_ways, n_rows = ways_and_rows

    def total(cell: GRU) -> Array:
        inputs = jnp.zeros((2, n_rows, cell.input.weight.shape[0]))
        return gru_states(cell, inputs, jnp.zeros((2, n_ways, n_rows), bool), how)[0].sum()

    del device  # what the compiler says of one device says nothing of another
    return why_not_compiled(jax.grad(total), cell)


def _form(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def fits(cell: GRU, start: Array, how: Kernels) -> bool:
    """Whether the kernels can be used: rows and hidden units are whole blocks, of sizes that tensor cores take."""
    n_rows, n_hidden = start.shape[-1], cell.hidden.weight.shape[0]
    return (CompilerParams is not None and cell.hidden.weight.dtype == jnp.float32) and all(
        min(block[:3]) >= 16
        and all(map(is_power_of_two, block[:3]))
        and n_rows % block.rows == n_hidden % block.columns == n_hidden % block.depth == 0
        for block in (how.forward, how.backward)
    )


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def gru_states(cell: GRU, inputs: Array, start: Array, how: Kernels) -> States:
    """States of rows that are cut in several ways; the gradient is that of the first.

    inputs  # [T, B, I]; start  # [T, V, B]; returns V of  # [T, B, H]
    """
    return forward_walk(cell, inputs @ cell.input.weight + cell.input.bias, start, how)[0]


def _forward(cell: GRU, inputs: Array, start: Array, how: Kernels) -> tuple[States, Any]:
    states, kept = forward_walk(cell, inputs @ cell.input.weight + cell.input.bias, start, how, keep=True)
    return states, (cell, inputs, start[:, 0], states[0], kept)


def _backward(how: Kernels, saved: Any, d_states: States) -> tuple[GRU, Array, None]:
    cell, inputs, start, states, kept = saved
    d_gates = backward_walk(cell, d_states[0], start, kept, how)
    before = jnp.where(start.at[0].set(True)[..., None], 0.0, jnp.roll(states, 1, axis=0))
    # The inputs' gradients leave out one of the four gates and the states' another, after the products: cutting it out
    # before would copy the other three. The row of ones gives the biases', which would be one more pass.
    seen = jnp.concatenate([inputs, jnp.ones_like(inputs[..., :1])], axis=-1)
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    d_hidden, d_input = (
        jnp.split(product("tbi,tbo->io", x.astype(d_gates.dtype), d_gates), N_KEPT, axis=-1) for x in (before, seen)
    )
    hidden = jnp.concatenate(d_hidden[:3], axis=-1), jnp.concatenate([part[-1] for part in d_input[:3]])
    input_and_bias = jnp.concatenate([d_input[0], d_input[1], d_input[3]], axis=-1)
    reset, update, new = jnp.split(cell.input.weight.astype(d_gates.dtype), 3, axis=-1)
    weight = jnp.concatenate([reset, update, jnp.zeros_like(new), new], axis=-1)
    d_cell = cell._replace(
        input=cell.input._replace(weight=input_and_bias[:-1], bias=input_and_bias[-1]),
        hidden=cell.hidden._replace(weight=hidden[0], bias=hidden[1]),
    )
    return d_cell, product("tbo,io->tbi", d_gates, weight), None


gru_states.defvjp(_forward, _backward)


def forward_walk(cell: GRU, projected: Array, start: Array, how: Kernels, keep: bool = False) -> tuple[States, Any]:
    """The states and, if asked for, what `backward_walk` needs of the first way of cutting.

    projected  # [T, B, 3H], what the inputs add to the gates' sums; start  # [T, V, B]
    """
    (n_steps, n_ways, n_rows), n_hidden = start.shape, cell.hidden.weight.shape[0]
    # What is summed over comes last  # [3, H, H]: tensor cores want that for TF32, and memory is read in whole lines.
    weight = cell.hidden.weight.reshape(n_hidden, 3, n_hidden).transpose(1, 2, 0).astype(how.operand)
    given = (projected, start.astype(jnp.int32), weight, cell.hidden.bias)
    shapes = [((n_steps, n_rows, n_hidden), "float32")] * n_ways
    if keep:
        shapes += [((n_steps, n_rows, N_KEPT * n_hidden), how.kept), ((n_steps, n_rows, n_hidden), how.kept)]
    found = _walk(_forward_step, n_ways * n_rows, how.forward, how, given, (), shapes)
    return tuple(found[:n_ways]), tuple(found[n_ways:])


def backward_walk(cell: GRU, d_own: Array, start: Array, kept: Kept, how: Kernels) -> Array:
    """The gradients of the gates' sums, in the place of their factors.

    d_own  # [T, B, H], the states' gradients but for what comes of later states; start  # [T, B]
    """
    factors, admit = kept
    given = (d_own, start.astype(jnp.int32), cell.hidden.weight.astype(how.operand), admit)
    shapes = [(factors.shape, factors.dtype), (d_own.shape[1:], "float32")]
    d_gates: Array = _walk(_backward_step, d_own.shape[1], how.backward, how, given, (factors,), shapes)[0]
    return d_gates


def _walk(step: Any, n_rows: int, blocks: Blocks, how: Kernels, given: Any, carried: Any, shapes: Any) -> Any:
    """The first step, which makes the buffers that are not there yet, and a loop of all others."""
    n_steps, n_hidden = given[0].shape[0], given[2].shape[-2]

    @partial(jax.jit, static_argnames="is_first")  # traced once, and not for every place it is at
    def call(i: Array, j: Array, carried: Any, is_first: bool = False) -> Any:
        return pl.pallas_call(
            partial(step, blocks=blocks, unroll=how.unroll, is_first=is_first),
            [jax.ShapeDtypeStruct(*shape) for shape in shapes],
            grid=(n_rows // blocks.rows, n_hidden // blocks.columns),
            input_output_aliases={2 + len(given) + k: k for k in range(len(carried))},
            compiler_params=None if how.interpret else CompilerParams(blocks.warps, blocks.stages),
            interpret=how.interpret,
            name=f"gru{step.__name__}",
        )(i, j, *given, *carried)

    # A step's number is i · unroll + j + 1, added up in the kernel: out here, each would take a kernel of its own.
    count = [jnp.full(1, j, jnp.int32) for j in range(how.unroll)]

    def several(i: Array, carried: Any, n: int = how.unroll) -> Any:
        for j in range(n):
            carried = call(i.astype(jnp.int32).reshape(1), count[j], carried)
        return carried

    n_loops, n_left = divmod(n_steps - 1, how.unroll)
    carried = call(count[0], count[0], carried, is_first=True)
    return several(jnp.int32(n_loops), jax.lax.fori_loop(0, n_loops, several, carried), n_left)


def _forward_step(
    i: Any, j: Any, projected: Any, start: Any, weight: Any, bias: Any, *buffers: Any, blocks: Blocks, **place: Any
) -> None:
    per_way, n_ways = projected.shape[1] // blocks.rows, start.shape[1]
    outputs = buffers if place["is_first"] else buffers[len(buffers) // 2 :]
    t = 0 if place["is_first"] else i[0] * place["unroll"] + j[0] + 1
    rows = pl.ds(pl.program_id(0) % per_way * blocks.rows, blocks.rows)
    columns, gate = _columns(blocks, weight.shape[-1])

    def one_way(way: int) -> None:
        reset_in, update_in, new_in = (projected[t, rows, g] for g in gate[:3])
        sums = [jnp.zeros((blocks.rows, blocks.columns), jnp.float32)] * 3
        before = sums[0]
        if not place["is_first"]:
            states = buffers[way]
            before, is_start = states[t - 1, rows, columns], start[t, way, rows] != 0

            def add(k: Any, sums: Any) -> Any:
                part = pl.ds(k * blocks.depth, blocks.depth)
                state = states[t - 1, rows, part]
                return [s + _product(state, weight[g, columns, part]) for g, s in enumerate(sums)]

            # A reset is a row of zeros, and so are its products: these need not wait for it.
            sums = _sum(add, sums, weight.shape[-1] // blocks.depth)
            *sums, before = (jnp.where(is_start[:, None], 0.0, part) for part in (*sums, before))
        reset_hidden, update_hidden, new_hidden = (s + bias[g][None] for s, g in zip(sums, gate[:3], strict=True))
        reset, update = jax.nn.sigmoid(reset_in + reset_hidden), jax.nn.sigmoid(update_in + update_hidden)
        candidate = jnp.tanh(new_in + reset * new_hidden)
        outputs[way][t, rows, columns] = candidate + update * (before - candidate)
        if way == 0 and len(outputs) > n_ways:
            *_, factors, admit = outputs
            by_new = (1.0 - update) * (1.0 - candidate**2)
            by_reset = by_new * new_hidden * reset * (1.0 - reset)
            by_update = (before - candidate) * update * (1.0 - update)
            for g, factor in zip(gate, (by_reset, by_update, by_new * reset, by_new), strict=True):
                factors[t, rows, g] = factor.astype(factors.dtype)
            # Not the update gate itself: bfloat16 could not tell one that is close to 1 from 1.
            admit[t, rows, columns] = (1.0 - update).astype(admit.dtype)

    for way in range(n_ways):
        pl.when(pl.program_id(0) // per_way == way)(partial(one_way, way))


def _backward_step(
    i: Any, j: Any, d_own: Any, start: Any, weight: Any, admit: Any, *buffers: Any, blocks: Blocks, **place: Any
) -> None:
    factors, *_, d_gates, direct = buffers  # what goes through the update gate to the step before
    n_steps, n_hidden = d_own.shape[0], weight.shape[0]
    t = n_steps - 1 if place["is_first"] else n_steps - 2 - i[0] * place["unroll"] - j[0]
    rows = pl.ds(pl.program_id(0) * blocks.rows, blocks.rows)
    columns, gate = _columns(blocks, n_hidden)
    by_gate, update = [factors[t, rows, g] for g in gate], 1.0 - admit[t, rows, columns].astype(jnp.float32)
    d_state = d_own[t, rows, columns]
    if not place["is_first"]:
        is_start, d_direct = start[t + 1, rows] != 0, buffers[1][rows, columns]

        def add(k: Any, sums: Any) -> Any:  # the factors of the step after this one have become gradients
            part = pl.ds(k * blocks.depth, blocks.depth)
            return [sums[0] + _product(factors[t + 1, rows, part], weight[columns, part])]

        (d_before,) = _sum(add, [d_direct], 3 * n_hidden // blocks.depth)
        d_state += jnp.where(is_start[:, None], 0.0, d_before)
    for g, factor in zip(gate, by_gate, strict=True):
        d_gates[t, rows, g] = (d_state * factor.astype(jnp.float32)).astype(d_gates.dtype)
    direct[rows, columns] = d_state * update


def _columns(blocks: Blocks, n_hidden: int) -> tuple[Any, list[Any]]:
    """The columns of a program, among the hidden units and among the sums of each gate."""
    first = pl.program_id(1) * blocks.columns
    return pl.ds(first, blocks.columns), [pl.ds(g * n_hidden + first, blocks.columns) for g in range(N_KEPT)]


def _sum(add: Any, sums: Any, n: int) -> Any:
    return add(0, sums) if n == 1 else jax.lax.fori_loop(0, n, add, sums)


def _product(left: Array, right: Array) -> Array:
    """left @ right.T"""
    precision = jax.lax.Precision.HIGH if right.dtype == jnp.float32 else None  # TF32
    contract = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(left.astype(right.dtype), right, contract, precision, jnp.float32)
