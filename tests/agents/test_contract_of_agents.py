"""What every agent has to keep, whatever its settings, and which environments it refuses."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import run
from jax import jit
from small_agents import BATCH, OBS, batch_of, constant, continuous_spec, discrete_spec, first_gradient, on_host

from diaster.agents import Transition, make_agent
from diaster.agents.ddpg import make_ddpg
from diaster.agents.dqn import make_dqn
from diaster.agents.potential import Shaped
from diaster.agents.sac import make_sac
from diaster.agents.sac_discrete import make_sac_discrete
from diaster.agents.tanh_gaussian import tanh_gaussian
from diaster.agents.td3 import make_td3
from diaster.agents.xqc import make_xqc
from diaster.agents.xqc_discrete import make_xqc_discrete
from diaster.config import AGENTS, DdpgConfig, DqnConfig, SacConfig, Td3Config, XqcConfig, build_config, validate
from diaster.errors import DiasterError
from diaster.nn import nets
from diaster.nn.normed import of_averages
from diaster.run import load
from diaster.training.train import train

HIDDEN = 8
SPECS = {"continuous": continuous_spec(2), "discrete": discrete_spec(3)}
CLIPPED = {"critic_loss": "huber", "gradient_clip": 0.5}
NORMED = {"actor_hidden": HIDDEN, "layers": 2, "atoms": 11, "annealing_updates": 100, "policy_every": 2}
VARIANTS = {
    "sac, continuous": {},
    "sac, continuous, clipped": CLIPPED,
    "sac, continuous, with a potential": {"potential": True},
    "xqc, continuous": NORMED,
    "xqc, continuous, in 16 bits": {**NORMED, "precision": "bfloat16"},
    "xqc, continuous, without a potential": {**NORMED, "potential": False},
    "xqc, discrete": NORMED,
    "xqc, discrete, in 16 bits": {**NORMED, "precision": "bfloat16"},
    "td3, continuous": {},
    "ddpg, continuous": {},
    "dqn, discrete": {},
    "dqn, discrete, plain with copies": {"double": False, "target_rate": 1.0, "target_every": 3},
    "sac, discrete": {},
    "sac, discrete, clipped": CLIPPED,
}
each_variant = pytest.mark.parametrize("name", VARIANTS)


def parts_of(name: str) -> tuple[str, str]:
    """The agent and the kind of actions of a variant."""
    agent, kind, *_ = name.split(", ")
    return agent, kind


class Subject:
    """An agent and its programs, each compiled once for all tests."""

    def __init__(self, name: str) -> None:
        agent, self.kind = parts_of(name)
        settings = {"hidden": HIDDEN, "learning_rate": 1e-2, "batch_size": BATCH, **VARIANTS[name]}
        config = build_config(env="Made-up", agent={"name": agent, **settings})
        validate(config)
        self.spec = SPECS[self.kind]
        self.agent = make_agent(config.agent, self.spec)
        self.traces = 0
        self.update = jit(self.traced)

    def traced(self, *arguments):
        self.traces += 1  # runs when JAX traces, not when the program runs
        return self.agent.update(*arguments)

    def init(self, seed: int):
        # Not compiled whole: all variants share its single operations.
        return self.agent.init(jax.random.key(seed), self.spec)

    def draw(self, seed: int, number: int) -> tuple[Transition, jax.Array]:
        """A random batch, every third step of it terminal, and the noise for it."""
        rng = np.random.default_rng((seed, number))
        if self.kind == "discrete":
            action = np.eye(self.spec.action_dim, dtype=np.float32)[rng.integers(self.spec.action_dim, size=BATCH)]
        else:
            action = rng.uniform(-1.0, 1.0, (BATCH, self.spec.action_dim)).astype(np.float32)
        obs, next_obs = rng.normal(size=(2, BATCH, OBS)).astype(np.float32)
        batch = batch_of(action, rng.normal(size=BATCH), [False, False, True], obs, next_obs)
        return batch, self.agent.noise(jax.random.fold_in(jax.random.key(seed), number), batch)

    def life(self, seed: int, n_updates: int = 4, reward_scale: float = 1.0):
        """From nothing to a few updates: the state, and the metrics of the last one."""
        state = self.init(seed)
        for number in range(n_updates):
            batch, noise = self.draw(seed, number)
            batch = batch._replace(reward=np.float32(reward_scale) * batch.reward)
            state, metrics = self.update(state, batch, noise, np.int32(number))
        return jax.device_get((state, metrics))


subject = cache(Subject)


def is_finite(tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def differ(one, other) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in leaves)


def test_every_agent_is_under_this_contract_with_each_kind_of_actions_it_takes():
    pairs = {(name, kind) for name, agent in AGENTS.items() for kind in SPECS if agent.factory(kind == "discrete")}
    assert set(map(parts_of, VARIANTS)) == pairs


@each_variant
def test_state_metrics_and_policy_stay_finite_for_no_rewards_and_for_huge_ones(name):
    one = subject(name)
    for reward_scale in (0.0, 1.0, 1e6):
        state, metrics = one.life(0, reward_scale=reward_scale)
        assert is_finite(state) and is_finite(metrics) and is_finite(one.agent.policy(state)), reward_scale
        assert {"critic_loss", "q_value"} <= metrics.keys()
        assert all(np.shape(value) == () for value in metrics.values())


# Batches of XQC's critics hold (s′, a′) as well: what follows changes their moments. Its target is in test_xqc.py.
@pytest.mark.parametrize("name", [name for name in VARIANTS if not name.startswith("xqc")])
def test_updates_on_terminal_steps_alone_do_not_look_at_what_follows(name):
    one = subject(name)
    batch, noise = one.draw(0, 0)
    batch = batch._replace(terminal=np.ones(BATCH, bool))
    elsewhere = batch._replace(next_obs=batch.next_obs + 5.0)
    results = [one.update(one.init(0), given, noise, np.int32(2)) for given in (batch, elsewhere)]
    jax.tree.map(np.testing.assert_array_equal, *results)
    not_terminal = [
        one.update(one.init(0), given._replace(terminal=np.zeros(BATCH, bool)), noise, np.int32(2))
        for given in (batch, elsewhere)
    ]
    assert differ(*not_terminal)


@each_variant
def test_two_seeds_in_one_program_equal_two_single_runs(name):
    one, seeds = subject(name), (0, 1)

    def together(*parts):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)

    states = together(*(one.init(seed) for seed in seeds))
    update = jit(jax.vmap(one.agent.update, (0, 0, 0, None)))
    for number in range(4):
        batches, noise = together(*(one.draw(seed, number) for seed in seeds))
        states, metrics = update(states, batches, noise, np.int32(number))
    for position, seed in enumerate(seeds):
        of_seed = jax.tree.map(lambda leaf, position=position: leaf[position], (states, metrics))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), of_seed, one.life(seed))


@each_variant
def test_two_seeds_differ_from_the_start(name):
    one = subject(name)
    assert differ(one.init(0), one.init(1))
    assert differ(one.agent.policy(one.init(0)).layers, one.agent.policy(one.init(1)).layers)


@each_variant
def test_the_same_seed_gives_the_same_numbers(name):
    jax.tree.map(np.testing.assert_array_equal, subject(name).life(3), subject(name).life(3))


@each_variant
def test_updates_change_the_policy(name):
    one = subject(name)
    assert differ(one.agent.policy(one.init(0)).layers, one.agent.policy(one.life(0)[0]).layers)


@each_variant
def test_an_update_is_traced_once_for_a_shape(name):
    one = subject(name)  # the other tests use it with the same shapes
    one.life(0)
    assert one.traces == 1


def own_action(name: str, state, obs):
    """The deterministic action, by the agent's own nets."""
    agent, kind = parts_of(name)
    state = state.agent if isinstance(state, Shaped) else state
    if agent == "sac" and kind == "continuous":
        return tanh_gaussian(nets.mlp(state.actor, obs), jnp.zeros((len(obs), SPECS[kind].action_dim)))[0]
    if agent == "xqc":
        outputs = of_averages(state.slow.actor, state.slow.seen, obs)
        if kind == "discrete":
            return jax.nn.one_hot(outputs.argmax(axis=-1), outputs.shape[-1])
        return tanh_gaussian(outputs, jnp.zeros((len(obs), SPECS[kind].action_dim)))[0]
    if agent in ("td3", "ddpg"):
        return jnp.tanh(nets.mlp(state.slow.actor if agent == "td3" else state.actor, obs))
    values = nets.mlp(state.net if agent == "dqn" else state.actor, obs)
    return jax.nn.one_hot(values.argmax(axis=-1), values.shape[-1])


@each_variant
def test_the_host_acts_as_the_agents_own_nets_would(name):
    one = subject(name)
    state, _ = one.life(0)
    parameters = on_host(one.agent.policy(state))
    obs = np.random.default_rng(5).normal(size=(50, OBS)).astype(np.float32) * 3.0
    host = np.stack([one.agent.acting.act(parameters, single, None) for single in obs])
    assert host.shape == (50, one.spec.action_dim)
    np.testing.assert_allclose(host, own_action(name, state, jnp.asarray(obs)), atol=1e-5)
    assert len(np.unique(host.round(4), axis=0)) > 1  # the action depends on the observation


# SAC's options, which both of its forms have


def huber(error):
    return np.where(np.abs(error) <= 1.0, 0.5 * error**2, np.abs(error) - 0.5)


@pytest.mark.parametrize("kind", SPECS)
def test_the_critics_errors_count_squared_or_by_huber(kind):
    spec = SPECS[kind]
    inputs, outputs = (OBS, spec.action_dim) if kind == "discrete" else (OBS + spec.action_dim, 1)
    critics = tuple(constant(inputs, *[value] * outputs, hidden=HIDDEN) for value in (0.25, 3.0))
    for name, counted in ((f"sac, {kind}", np.square), (f"sac, {kind}, clipped", huber)):
        one = subject(name)
        batch, noise = one.draw(0, 0)
        batch = batch._replace(reward=np.zeros(BATCH, np.float32), terminal=np.ones(BATCH, bool))
        _, metrics = one.update(one.init(0)._replace(critics=critics), batch, noise, np.int32(0))
        assert float(metrics["critic_loss"]) == pytest.approx(float(counted(0.25) + counted(3.0)), rel=1e-5)


@pytest.mark.parametrize("kind", SPECS)
def test_gradients_of_actor_and_critics_are_cut_to_the_largest_norm_asked_for_and_no_further(kind):
    free, clipped = subject(f"sac, {kind}"), subject(f"sac, {kind}, clipped")

    def gradients(one, reward_of_all: float, temperature: float):
        batch, noise = one.draw(0, 0)
        reward = np.full(BATCH, reward_of_all, np.float32)
        batch = batch._replace(reward=reward, terminal=np.ones(BATCH, bool))
        state = one.init(0)._replace(log_temperature=np.float32(np.log(temperature)))
        new, _ = one.update(state, batch, noise, np.int32(0))
        optimizers = [new.critic_optimizer, new.actor_optimizer]
        nets_only = [optimizer[1] if one is clipped else optimizer for optimizer in optimizers]
        return [*map(first_gradient, nets_only), first_gradient(new.temperature_optimizer)]

    def norm(tree):
        return float(np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(tree))))

    *large, of_temperature = gradients(free, 100.0, 50.0)
    *cut, untouched = gradients(clipped, 100.0, 50.0)
    for before, after in zip(large, cut, strict=True):
        assert norm(before) > 1.0
        assert norm(after) == pytest.approx(CLIPPED["gradient_clip"], rel=1e-3)
    assert untouched == pytest.approx(of_temperature, rel=1e-5)  # the temperature is no net
    # Small errors, which Huber counts half.
    small, kept = gradients(free, 0.1, 0.01), gradients(clipped, 0.1, 0.01)
    assert norm(kept[0]) < CLIPPED["gradient_clip"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 0.5 * b, rtol=1e-4, atol=1e-6), kept[0], small[0])


# The wrong pairs

WRONG = {
    "sac": (make_sac, SacConfig(), "discrete", ["sac", "make_sac_discrete"]),
    "xqc": (make_xqc, XqcConfig(annealing_updates=0), "discrete", ["xqc", "make_xqc_discrete"]),
    "td3": (make_td3, Td3Config(), "discrete", ["td3", "dqn", "sac", "xqc"]),
    "ddpg": (make_ddpg, DdpgConfig(), "discrete", ["ddpg", "dqn", "sac", "xqc"]),
    "dqn": (make_dqn, DqnConfig(), "continuous", ["dqn", "sac", "xqc", "td3", "ddpg"]),
    "sac discrete": (make_sac_discrete, SacConfig(), "continuous", ["sac", "make_sac"]),
    "xqc discrete": (make_xqc_discrete, XqcConfig(annealing_updates=0), "continuous", ["xqc", "make_xqc"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_agent_refuses_actions_of_the_other_kind_and_names_the_right_one(name):
    make, config, kind, words = WRONG[name]
    with pytest.raises(DiasterError) as caught:
        make(config).init(jax.random.key(0), SPECS[kind])
    for word in ("'Made-up'", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("env", "agent", "named"),
    [
        ("ToyDiscrete-v0", "td3", ["--agent dqn", "--agent sac", "--agent xqc"]),
        ("ToyDiscrete-v0", "ddpg", ["--agent dqn", "--agent sac", "--agent xqc"]),
        ("Toy-v0", "dqn", ["--agent ddpg", "--agent sac", "--agent td3", "--agent xqc"]),
    ],
)
def test_a_wrong_pair_on_the_command_line_is_one_sentence_with_exit_code_2_and_nothing_written(
    env: str, agent: str, named: list[str], empty_cwd: Path
) -> None:
    code, out, err = run("train", env, "--agent", agent, "--import", "toy_envs", "--workers", 0)
    assert (code, out) == (2, "")
    assert err.startswith(f"diaster: the agent '{agent}' cannot act in '{env}'")
    assert err.count("\n") == 1
    for words in named:
        assert words in err
    assert list(empty_cwd.rglob("*")) == []


# Each of the three environments, each of the two agents, and a method with and one without a net of its own.
@pytest.mark.parametrize(
    ("env", "agent", "method"),
    [
        ("CartPole-v1", "sac", {"name": "rrd", "hidden": 4, "updates": 1, "every": 50}),
        ("Acrobot-v1", "dqn", "uniform"),
        ("LunarLander-v3", "dqn", "uniform"),
    ],
)
def test_the_reference_environments_of_discrete_actions_train_record_metrics_and_load_back(
    env: str, agent: str, method: str | dict[str, Any], tmp_path: Path
) -> None:
    made = train(
        env, method=method, agent={"name": agent, "hidden": 4, "batch_size": 8, "every": 5}, steps=200,
        warmup_steps=100, chunk_steps=100, horizon=30, workers=0, evaluation={"every": 200, "episodes": 1},
        out=tmp_path / "run",
    )  # fmt: skip
    made = load(made.path)
    for name in ("return_mean", "critic_loss", "q_value", *(["step_loss"] if method != "uniform" else [])):
        assert np.isfinite(made.progress[name]).all()
    action = made.policy()(np.zeros(made.spec.obs_dim, np.float32))
    assert action.shape == () and 0 <= int(action) < made.spec.action_dim
    assert 1.0 <= made.evaluate(episodes=1)[0][0].length_mean <= 30.0
