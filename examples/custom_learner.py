"""A learner of your own with `diaster.DecomposedReplay`: a small double DQN in JAX on CartPole-v1.

    python examples/custom_learner.py                  # a minute on two idle cores
    python examples/custom_learner.py --method rrd --seed 3

The loop gets one number when an episode ends: how long the pole stood. It hands whole episodes to the replay, lets it
fit, and draws batches with the decomposer's present rewards. Everything else is an ordinary DQN. Replace it by a
learner of your own, which has to do four things for the replay: the lines marked with (*).
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax

import diaster

STEPS, EVERY, UPDATES = 50_000, 50, 25  # environment steps, and updates of the net after so many of them
RANDOM, FALL = 1000, 10_000  # steps of random actions, and those in which their share falls
LEAST_RANDOM = 0.05
BATCH, HIDDEN, DISCOUNT, TARGET_RATE = 128, 128, 0.99, 0.01
OPTIMIZER = optax.adam(optax.linear_schedule(1e-3, 0.0, STEPS // EVERY * UPDATES))
Net = list[tuple[Any, Any]]


def init_net(key: jax.Array, *sizes: int) -> Net:
    """A perceptron with ReLU."""
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (n_in, n_out)) * (2 / n_in) ** 0.5, jnp.zeros(n_out)) for k, n_in, n_out in shapes]


def q_values(net: Net, obs: Any) -> Any:
    """A value for each action; of arrays of JAX or of NumPy."""
    *hidden, (weight, bias) = net
    for w, b in hidden:
        obs = (obs @ w + b).clip(0.0)
    return obs @ weight + bias


def loss(net: Net, target_net: Net, batch: diaster.Batch) -> jax.Array:
    """Double DQN: the net chooses the next action, the target net says what it is worth."""
    rows = jnp.arange(BATCH)
    best = q_values(net, batch.next_obs).argmax(axis=1)
    following = q_values(target_net, batch.next_obs)[rows, best]
    target = batch.reward + DISCOUNT * jnp.where(batch.terminal, 0.0, following)
    error: jax.Array = q_values(net, batch.obs)[rows, batch.action] - jax.lax.stop_gradient(target)
    return 0.5 * (error**2).mean()


@jax.jit
def learn(state: Any, batches: diaster.Batch) -> Any:
    """An update for each batch.  # [UPDATES, BATCH, …]"""

    def update(state: Any, batch: diaster.Batch) -> tuple[Any, None]:
        net, target_net, optimizer = state
        change, optimizer = OPTIMIZER.update(jax.grad(loss)(net, target_net, batch), optimizer)
        net = optax.apply_updates(net, change)
        return (net, optax.incremental_update(net, target_net, TARGET_RATE), optimizer), None

    return jax.lax.scan(update, state, batches)[0]


def train(env: gym.Env[Any, Any], replay: diaster.DecomposedReplay, seed: int) -> Net:
    """Algorithm and environment take turns; returns the net."""
    random = np.random.default_rng(seed)
    net = init_net(jax.random.key(seed), 4, HIDDEN, HIDDEN, 2)
    state = net, net, OPTIMIZER.init(net)
    acting: Net = jax.device_get(net)
    returns: list[float] = []
    obs, _ = env.reset(seed=seed)
    seen, actions, total = [obs], [], 0.0
    for step in range(1, STEPS + 1):
        share = max(LEAST_RANDOM, 1.0 - max(0, step - RANDOM) / FALL)
        action = int(random.integers(2) if random.uniform() < share else q_values(acting, obs).argmax())
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        seen.append(obs)
        actions.append(action)
        if terminated or truncated:
            replay.add(np.stack(seen), np.array(actions), total, terminated)  # (*)
            returns.append(total)
            obs, _ = env.reset()
            seen, actions, total = [obs], [], 0.0
        if step % EVERY == 0 and step >= RANDOM and replay.has_enough:  # (*)
            replay.fit(replay.updates_due(step))  # (*)
            drawn = replay.sample(UPDATES * BATCH)  # (*)
            state = learn(state, jax.tree.map(lambda part: part.reshape(UPDATES, BATCH, *part.shape[1:]), drawn))
            acting = jax.device_get(state[0])
        if step % 5000 == 0:
            fit = replay.metrics().get("fit_r2", float("nan"))
            print(f"step {step:6,}   mean of the last ten returns {np.mean(returns[-10:]):6.1f}   fit {fit:5.2f}")
    return acting


def evaluate(env: gym.Env[Any, Any], net: Net, episodes: int = 20) -> float:
    """The mean return without random actions."""
    total = 0.0
    for number in range(episodes):
        obs, _ = env.reset(seed=10_000 + number)
        is_over = False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(int(q_values(net, obs).argmax()))
            total += float(reward)
            is_over = terminated or truncated
    return total / episodes


def main() -> None:
    """Train and evaluate, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="diaster", help="'diaster list methods' shows all there are")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    env = gym.make("CartPole-v1")
    method = {"name": given.method}
    if given.method in ("diaster", "rrd", "rd", "rudder"):
        method |= {"updates": 50, "every": 1000}  # few are enough here
    replay = diaster.DecomposedReplay(
        env.observation_space, env.action_space, horizon=500, method=method, capacity=100_000, seed=given.seed
    )
    net = train(env, replay, given.seed)
    print(f"mean return of 20 episodes without random actions: {evaluate(env, net):.1f} of 500")


if __name__ == "__main__":
    try:
        main()
    except diaster.DiasterError as error:
        raise SystemExit(str(error)) from None
