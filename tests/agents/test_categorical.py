"""Distributions on atoms: projections worked out by hand, and by a loop over all atoms."""

from __future__ import annotations

import numpy as np
import pytest
from jax import jit
from small_agents import projected_one_by_one

from diaster.agents.categorical import atoms_of, certain_zero, project

LIMIT, ATOMS = 2.0, atoms_of(2.0, 5)  # −2, −1, 0, 1, 2
projected = jit(project, static_argnums=(2, 3))


def project_row(mass, offset, slope):
    found = projected(np.array([mass], np.float32), np.array([offset], np.float32), slope, LIMIT)
    return np.asarray(found.mass[0]), float(found.clipped[0])


def test_atoms_are_evenly_spaced_from_minus_the_limit_to_the_limit_and_the_middle_one_is_zero():
    np.testing.assert_allclose(ATOMS, [-2.0, -1.0, 0.0, 1.0, 2.0])
    default = np.asarray(atoms_of(5.0, 101))
    assert len(default) == 101 and default[50] == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(np.diff(default), 0.1, rtol=1e-4)
    np.testing.assert_array_equal(certain_zero(5), [0.0, 0.0, 1.0, 0.0, 0.0])


SOME = [0.1, 0.2, 0.3, 0.25, 0.15]
# mass, offset, slope, the mass on the atoms, the share that was clipped
CASES = {
    "values on atoms stay": (SOME, 0.0, 1.0, SOME, 0.0),
    "values between atoms are shared": ([0, 0.5, 0, 0.5, 0], 0.25, 1.0, [0, 0.375, 0.125, 0.375, 0.125], 0.0),
    "a terminal step is its reward": ([0, 0, 1, 0, 0], 0.75, 0.99, [0, 0, 0.25, 0.75, 0], 0.0),
    "without a future all mass has one value": (SOME, 0.75, 0.0, [0, 0, 0.25, 0.75, 0], 0.0),
    "a reward beyond the atoms": (SOME, 9.0, 0.5, [0, 0, 0, 0, 1], 1.0),
    "and one below them": (SOME, -9.0, 0.5, [1, 0, 0, 0, 0], 1.0),
    "r = 1 and a discount of a half": ([0.2] * 5, 1.0, 0.5, [0, 0, 0.3, 0.4, 0.3], 0.0),
    "r = 1.5, no discount": ([0.2] * 5, 1.5, 1.0, [0, 0.1, 0.2, 0.2, 0.5], 0.4),
    "no mass beyond, nothing clipped": ([0, 0, 1, 0, 0], 1.5, 1.0, [0, 0, 0, 0.5, 0.5], 0.0),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_mass_goes_to_the_two_atoms_next_to_its_value(case):
    mass, offset, slope, expected, clipped = CASES[case]
    found, found_clipped = project_row(mass, offset, slope)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found_clipped == pytest.approx(clipped, abs=1e-6)


@pytest.mark.parametrize("slope", [1.0, 0.99, 0.9, 0.5, 0.0])
@pytest.mark.parametrize(("limit", "count"), [(5.0, 101), (2.0, 101), (10.0, 11)])
def test_a_projection_is_that_of_each_atom_on_its_own(slope, limit, count):
    rng = np.random.default_rng(0)
    atoms = np.linspace(-limit, limit, count)
    mass = rng.dirichlet(np.full(count, 0.3), size=40).astype(np.float32)
    offset = rng.normal(size=40).astype(np.float32) * limit
    found = projected(mass, offset, slope, limit)
    values = offset[:, None] + slope * atoms
    np.testing.assert_allclose(found.mass, projected_one_by_one(mass, values, atoms), atol=2e-5)
    np.testing.assert_allclose(found.mass.sum(axis=1), 1.0, atol=1e-5)
    assert (np.asarray(found.mass) >= 0.0).all()
    np.testing.assert_allclose(found.clipped, np.where(np.abs(values) > limit, mass, 0.0).sum(axis=1), atol=1e-5)


def test_a_value_at_the_limit_is_not_beyond_it():
    # To rounding: a value of r + γz that is the last atom on paper may lie a little above.
    assert project_row([0.5, 0, 0, 0, 0.5], 0.0, 1.0 + 1e-7)[1] == 0.0
    assert project_row([0.5, 0, 0, 0, 0.5], -0.01, 1.0)[1] == pytest.approx(0.5)


def test_infinite_rewards_are_beyond_the_atoms_and_lost_numbers_stay_lost():
    assert project_row(SOME, np.inf, 0.9)[0].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert project_row(SOME, -np.inf, 0.9) == (pytest.approx([1.0, 0.0, 0.0, 0.0, 0.0]), pytest.approx(1.0))
    assert np.isnan(project_row(SOME, np.nan, 0.9)[0]).any()
