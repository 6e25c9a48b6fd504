"""Distributions on atoms: projections worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from jax import jit

from diaster.agents.categorical import atoms_of, project

ATOMS = atoms_of(2.0, 5)  # −2, −1, 0, 1, 2
projected = jit(project)


def project_row(mass, values):
    found = projected(np.array([mass], np.float32), np.array([values], np.float32), ATOMS)
    return np.asarray(found.mass[0]), float(found.clipped[0])


def test_atoms_are_evenly_spaced_from_minus_the_limit_to_the_limit():
    np.testing.assert_allclose(ATOMS, [-2.0, -1.0, 0.0, 1.0, 2.0])
    default = np.asarray(atoms_of(5.0, 101))
    assert len(default) == 101 and default[50] == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(np.diff(default), 0.1, rtol=1e-4)


HALVES = [0.5, 0.0, 0.0, 0.0, 0.5]
# mass, values, the mass on the atoms, the share that was clipped
CASES = {
    "values on atoms stay": ([0.1, 0.2, 0.3, 0.25, 0.15], [-2, -1, 0, 1, 2], [0.1, 0.2, 0.3, 0.25, 0.15], 0.0),
    "values between atoms are shared by nearness": (HALVES, [0.25, 0, 0, 0, -1.5], [0.25, 0.25, 0.375, 0.125, 0], 0.0),
    "several values may fall on one atom": ([0.2] * 5, [1, 1, 1, 1, 1], [0, 0, 0, 1, 0], 0.0),
    "a terminal step is one value": ([0.1, 0.2, 0.3, 0.25, 0.15], [0.75] * 5, [0, 0, 0.25, 0.75, 0], 0.0),
    "a reward beyond the atoms": ([0.1, 0.2, 0.3, 0.25, 0.15], [9.0] * 5, [0, 0, 0, 0, 1], 1.0),
    "and one below them": ([0.1, 0.2, 0.3, 0.25, 0.15], [-2.5] * 5, [1, 0, 0, 0, 0], 1.0),
    "r = 1 and a discount of a half": ([0.2] * 5, [0, 0.5, 1, 1.5, 2], [0, 0, 0.3, 0.4, 0.3], 0.0),
    "r = 1.5, no discount": ([0.2] * 5, [-0.5, 0.5, 1.5, 2.5, 3.5], [0, 0.1, 0.2, 0.2, 0.5], 0.4),
    "no mass, nothing clipped": ([0, 0, 1, 0, 0], [-7, -6, 0.5, 6, 7], [0, 0, 0.5, 0.5, 0], 0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_mass_goes_to_the_two_atoms_next_to_its_value(case):
    mass, values, expected, clipped = CASES[case]
    found, found_clipped = project_row(mass, values)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found_clipped == pytest.approx(clipped, abs=1e-6)


@pytest.mark.parametrize("spread", [0.1, 3.0, 1000.0])
def test_mass_is_kept_and_inside_the_range_the_mean_is_too(spread):
    rng = np.random.default_rng(0)
    atoms = np.asarray(atoms_of(5.0, 101))
    mass = rng.dirichlet(np.ones(101), size=200).astype(np.float32)
    values = rng.normal(size=(200, 101)).astype(np.float32) * spread
    found = projected(mass, values, atoms)
    np.testing.assert_allclose(found.mass.sum(axis=1), 1.0, atol=1e-4)
    assert (np.asarray(found.mass) >= 0.0).all()
    cut = np.clip(values, -5.0, 5.0)
    np.testing.assert_allclose((found.mass * atoms).sum(axis=1), (mass * cut).sum(axis=1), atol=1e-3)
    np.testing.assert_allclose(found.clipped, np.where(np.abs(values) > 5.0, mass, 0.0).sum(axis=1), atol=1e-4)


def test_a_value_at_the_limit_is_not_beyond_it():
    # To rounding: a value of r + γz that is the last atom on paper may lie a little above.
    assert project_row(HALVES, [-2.0 * (1 + 1e-7), 0, 0, 0, 2.0 * (1 + 1e-7)])[1] == 0.0
    assert project_row(HALVES, [-2.01, 0, 0, 0, 2.0])[1] == pytest.approx(0.5)
