"""Normalised perceptrons against the same in NumPy, written out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diaster.nn import normed
from diaster.nn.nets import mlp

SIZES = (3, 8, 5, 2)
BATCH = 64


def random_net(seed: int = 0, sizes: tuple[int, ...] = SIZES):
    """A net with gains, shifts and a bias as after some learning."""
    rng = np.random.default_rng(seed)
    net, seen = normed.normed_init(jax.random.key(seed), sizes)

    def norm(given: normed.Norm) -> normed.Norm:
        n = given.gain.shape
        return normed.Norm(rng.uniform(0.5, 1.5, n).astype(np.float32), rng.normal(size=n).astype(np.float32))

    layers = tuple(layer._replace(norm=norm(layer.norm)) for layer in net.layers)
    head = net.head._replace(bias=rng.normal(size=sizes[-1]).astype(np.float32))
    return normed.NormedNet(norm(net.input), layers, head), seen


def inputs(mean: float = 0.0, deviation: float = 1.0, n: int = BATCH, seed: int = 5):
    draws = np.random.default_rng(seed).normal(size=(n, SIZES[0]))
    return (mean + deviation * draws).astype(np.float32)


def by_hand(net: normed.NormedNet, x, seen=None):
    """Outputs and moments in double precision; without `seen` the moments are the batch's."""
    moments = []

    def normalize(norm: normed.Norm, x):
        mean, variance = (x.mean(0), x.var(0)) if seen is None else seen[len(moments)]
        moments.append((mean, variance))
        return (x - mean) / np.sqrt(variance + 1e-3) * norm.gain + norm.shift

    net, seen = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (net, seen))
    x = normalize(net.input, np.asarray(x, np.float64))
    for layer in net.layers:
        x = np.maximum(normalize(layer.norm, x @ layer.kernel), 0.0)
    return x @ net.head.weight + net.head.bias, moments


def seen_by(net: normed.NormedNet, x):
    """What a net has seen that has always seen these inputs."""
    return normed.of_batch(net, x)[1]


def all_kernels(net: normed.NormedNet):
    return [*(layer.kernel for layer in net.layers), net.head.weight]


def test_two_numbers_are_normalised_as_one_does_by_hand():
    # 1 and 3 have mean 2 and variance 1; gain 2, shift 5; a kernel of 1, normalised again, and a head of 1 with bias 7.
    one = np.ones((1, 1), np.float32)
    net, _ = normed.normed_init(jax.random.key(0), (1, 1, 1))
    net = net._replace(
        input=normed.Norm(np.array([2.0]), np.array([5.0])),
        layers=(normed.Layer(one, normed.Norm(np.array([3.0]), np.array([1.0]))),),
        head=net.head._replace(weight=one, bias=np.array([7.0])),
    )
    outputs, (first, second) = normed.of_batch(net, np.array([[1.0], [3.0]], np.float32))
    scale = 1.0 / np.sqrt(1.001)
    assert [float(first.mean[0]), float(first.variance[0])] == pytest.approx([2.0, 1.0])
    assert [float(second.mean[0]), float(second.variance[0])] == pytest.approx([5.0, (2.0 * scale) ** 2], rel=1e-5)
    deviation = 3.0 * 2.0 * scale / np.sqrt((2.0 * scale) ** 2 + 1e-3)
    # The lower one is cut off by the ReLU.
    np.testing.assert_allclose(outputs[:, 0], [7.0, 7.0 + 1.0 + deviation], rtol=1e-5)


# The last one is far from zero: of its deviation, 32 bits keep four digits.
@pytest.mark.parametrize(("mean", "deviation", "tolerance"), [(0.0, 1.0, 1e-5), (-4.0, 30.0, 1e-5), (1e3, 0.1, 5e-3)])
def test_a_learning_net_takes_the_moments_of_its_batch(mean, deviation, tolerance):
    (net, _), x = random_net(), inputs(mean, deviation)
    outputs, seen = normed.of_batch(net, x)
    expected, moments = by_hand(net, x)
    np.testing.assert_allclose(outputs, expected, atol=tolerance)
    for found, (own_mean, own_variance) in zip(seen, moments, strict=True):
        np.testing.assert_allclose(found.mean, own_mean, rtol=1e-5, atol=tolerance)
        np.testing.assert_allclose(found.variance, own_variance, rtol=10.0 * tolerance)


def test_a_net_that_acts_takes_the_averages_and_each_row_by_itself():
    (net, _), x = random_net(), inputs(2.0, 3.0)
    seen = seen_by(net, inputs(1.5, 2.5, seed=6))
    outputs = normed.of_averages(net, seen, x)
    np.testing.assert_allclose(outputs, by_hand(net, x, seen)[0], atol=1e-5)
    np.testing.assert_allclose(outputs[3:4], normed.of_averages(net, seen, x[3:4]), atol=1e-5)


def test_a_new_net_has_seen_mean_0_and_variance_1():
    net, seen = normed.normed_init(jax.random.key(0), SIZES)
    assert [moments.mean.shape for moments in seen] == [(n,) for n in SIZES[:-1]]
    for moments, norm in zip(seen, (net.input, *(layer.norm for layer in net.layers)), strict=True):
        for zeros, ones in ((moments.mean, moments.variance), (norm.shift, norm.gain)):
            np.testing.assert_array_equal(zeros, 0.0)
            np.testing.assert_array_equal(ones, 1.0)
    np.testing.assert_array_equal(net.head.bias, 0.0)


def test_a_hundredth_of_what_is_new_goes_into_the_averages():
    seen = (normed.Moments(np.array([1.0, 0.0]), np.array([4.0, 1.0])),)
    new = (normed.Moments(np.array([3.0, -10.0]), np.array([2.0, 101.0])),)
    [moments] = normed.averaged(seen, new)
    np.testing.assert_allclose(moments.mean, [1.02, -0.1], rtol=1e-6)
    np.testing.assert_allclose(moments.variance, [3.98, 2.0], rtol=1e-6)
    for _ in range(2000):
        seen = normed.averaged(seen, new)
    np.testing.assert_allclose(seen[0].mean, new[0].mean, rtol=1e-5)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (3.0, 1.0), (0.0, 0.0), (-50.0, 20.0)])
def test_the_folded_net_is_a_plain_perceptron_that_computes_the_same(mean, deviation):
    (net, _), x = random_net(), inputs(mean, deviation)
    seen = seen_by(net, inputs(mean, deviation, seed=6))
    layers = normed.folded(net, seen)
    assert [layer.weight.shape for layer in layers] == [(3, 8), (8, 5), (5, 2)]
    np.testing.assert_allclose(mlp(layers, x), normed.of_averages(net, seen, x), atol=1e-5)


def test_folding_errs_no_more_than_a_few_last_digits_of_inputs_that_lie_far_from_zero_do():
    (net, _), x = random_net(), inputs(1000.0, 0.1)
    seen = seen_by(net, inputs(1000.0, 0.1, seed=6))
    exact = by_hand(net, x, seen)[0]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=x.shape)
    one_digit = np.abs(by_hand(net, x + signs * np.spacing(x), seen)[0] - exact).max()
    np.testing.assert_allclose(mlp(normed.folded(net, seen), x), exact, atol=8.0 * one_digit)
    # Where the mean is subtracted first, that does not happen.
    np.testing.assert_allclose(normed.of_averages(net, seen, x), exact, atol=1e-5)


def test_every_column_of_every_kernel_has_norm_1_from_the_start_and_after_it_was_scaled():
    new, _ = normed.normed_init(jax.random.key(1), SIZES)
    grown = jax.tree.map(lambda leaf: 3.0 * leaf + 0.1, random_net()[0])
    scaled = normed.with_unit_kernels(grown)
    for net in (new, scaled):
        for kernel in all_kernels(net):
            np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1.0, rtol=1e-5)
    # Directions stay, and so does all that is no kernel.
    for before, after in zip(all_kernels(grown), all_kernels(scaled), strict=True):
        np.testing.assert_allclose(before / np.linalg.norm(before, axis=0), after, atol=1e-6)
    kept = [(net.input, *(layer.norm for layer in net.layers), net.head.bias) for net in (grown, scaled)]
    jax.tree.map(np.testing.assert_array_equal, *kept)


def test_a_column_of_zeros_stays_one_and_stays_finite():
    net, _ = random_net()
    net = net._replace(head=net.head._replace(weight=net.head.weight.at[:, 0].set(0.0)))
    weight = np.asarray(normed.with_unit_kernels(net).head.weight)
    np.testing.assert_array_equal(weight[:, 0], 0.0)
    np.testing.assert_allclose(np.linalg.norm(weight[:, 1]), 1.0, rtol=1e-5)


def test_units_of_stacked_nets_are_scaled_each_in_its_own_net():
    nets = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(random_net(seed)[0] for seed in range(2)))
    scaled = normed.with_unit_kernels(jax.tree.map(lambda leaf: 2.0 * leaf, nets))
    for kernel in all_kernels(scaled):
        np.testing.assert_allclose(np.linalg.norm(kernel, axis=1), 1.0, rtol=1e-5)


def test_products_in_bfloat16_give_nearly_the_same_and_not_the_same():
    (net, _), x = random_net(), inputs(2.0, 3.0)
    exact, seen = normed.of_batch(net, x)
    rounded, rounded_seen = normed.of_batch(net, x, "bfloat16")
    averages = normed.of_averages(net, seen, x, "bfloat16")
    for found in (rounded, averages):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, exact, atol=0.1)
        assert np.abs(np.asarray(found - exact)).max() > 1e-5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.05, atol=0.05), rounded_seen, seen)


def test_the_gradient_reaches_every_part_of_a_net_but_the_shift_of_its_inputs_which_changes_nothing():
    (net, _), x = random_net(), inputs()

    def loss(net: normed.NormedNet, x):
        return (normed.of_batch(net, x)[0] ** 2).sum()

    gradient = jax.grad(loss)(net, x)
    np.testing.assert_array_equal(gradient.input.shift, 0.0)
    for leaf in jax.tree.leaves((gradient.input.gain, gradient.layers, gradient.head)):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 1e-3
    shifted = net._replace(input=net.input._replace(shift=net.input.shift + 2.0))
    np.testing.assert_allclose(normed.of_batch(shifted, x)[0], normed.of_batch(net, x)[0], atol=1e-4)
    # So do inputs that are moved elsewhere as a whole: their mean is subtracted.
    np.testing.assert_allclose(jax.grad(loss, argnums=1)(net, x).sum(axis=0), 0.0, atol=1e-3)
