r"""The paper's theorems, checked exactly by enumerating every episode of small random tabular MDPs.

States carry the time step: policy, transition, reward and the step reward \hat r^pi are tables with t as
first axis. Without it the conditional expectations are not Markov, and Theorem 1 fails for windows shorter
than the episode (tested). R_sub is any table of numbers, one per prefix tau_{0:k}, with R_sub(empty) = 0.

Theorem 1 holds for any R_sub.

Theorem 2 as stated, for any R_sub, is false, whether its right-hand side is read with the plain law of
episodes given (s_t, a_t) or with the appendix's Upsilon: \hat r^pi at t+i averages over *all* prefixes that
reach s_{t+i}, not only over those through (s_t, a_t). The proof is exact up to the step that cancels terms.
That step needs Upsilon_{k+1}(tau_{0:k+1}) to be the marginal of Upsilon_{k+2}. But the first is
T(tau_{0:k+1}) w_k(s_k) and the second T(tau_{0:k+1}) E[w_{k+1}(s_{k+1}) | s_k, a_k], with
w_k(s) = mu(s | s_t, a_t) / rho(s); in general they differ. Nor is Upsilon the law that the result means:
with it the equation fails even for an additive R_sub.

Theorem 2 with the plain law is true
  - on average over (s_t, a_t), where it is Theorem 1;
  - if R_sub is additive over steps;
  - if R_sub(tau_{0:c}) + R_sub(tau_{c:T}) = R(tau) for *every* cut c and every possible episode. A prefix
    and a suffix have only the state s_c in common, so R_sub(tau_{0:c}) is the sum of the rewards plus a
    potential of s_c (a constant where all transitions are possible), and the differences are the true
    rewards plus potential-based shaping. Leaving out a single cut is enough to break it;
  - if the state determines the prefix, since \hat r^pi then averages over nothing.

Lemma 1 holds. Its use, "Q_hat - Q depends on the state only if R_sub(tau_{0:T}) = R(tau)", is true at the
last step. Before it, it is true exactly where the two sides of Theorem 2 differ by a function of the state,
hence under the last two conditions, and under the additive one if whole episodes match; otherwise the
greedy policy can change. The paper's algebra between Theorem 2 and the lemma is right (tested).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]

STATES, ACTIONS, HORIZON = 3, 2, 4
SEEDS = range(4)
EXACT = 1e-11  # rounding only: sums of some thousand terms of order one
CLEARLY = 0.05  # a counter-example has to be this large, far beyond rounding

each_seed = pytest.mark.parametrize("seed", SEEDS)
each_dynamics = pytest.mark.parametrize("deterministic", [False, True], ids=["stochastic", "deterministic"])


@dataclass(frozen=True)
class World:
    """A finite-horizon MDP and the policy that acts in it; t is the first axis of all tables but `start`."""

    start: Array  # (state)
    transition: Array  # (t, state, action, next state)
    policy: Array  # (t, state, action)
    reward: Array  # (t, state, action)

    @property
    def horizon(self) -> int:
        return self.policy.shape[0]

    @property
    def states(self) -> int:
        return self.policy.shape[1]

    @property
    def pairs(self) -> int:
        """Number of (state, action) pairs. A prefix of k steps is a k-digit number in this base."""
        return self.policy.shape[1] * self.policy.shape[2]


def random_world(rng: np.random.Generator, deterministic: bool = False) -> World:
    """A random MDP with a stochastic policy; every transition is possible unless it is deterministic."""
    shape = (HORIZON, STATES, ACTIONS)
    if deterministic:
        transition = np.eye(STATES)[rng.integers(STATES, size=shape)]
    else:
        # Concentration below one: some transitions are likely, so states remember where they came from.
        transition = rng.dirichlet(np.full(STATES, 0.5), size=shape)
    return World(
        start=rng.dirichlet(np.ones(STATES)),
        transition=transition,
        policy=rng.dirichlet(np.ones(ACTIONS), size=shape[:2]),
        reward=rng.normal(size=shape),
    )


def random_history_tree(rng: np.random.Generator, horizon: int = 3) -> World:
    """An MDP whose state determines the prefix: state s, action a and a coin lead to state 4s + 2a + coin."""
    states = 4 ** (horizon - 1)
    transition = np.zeros((horizon, states, ACTIONS, states))
    for t in range(horizon - 1):
        for state, action in np.ndindex(4**t, ACTIONS):
            first = 4 * state + 2 * action
            transition[t, state, action, first : first + 2] = rng.dirichlet(np.ones(2))
    policy = rng.dirichlet(np.ones(ACTIONS), size=(horizon, states))
    return World(np.eye(states)[0], transition, policy, rng.normal(size=policy.shape))


def prefix_probabilities(world: World) -> list[Array]:
    r"""The paper's \mathcal T_k for k = 0..T: the probability of every prefix of k steps."""
    probabilities = [np.ones(1), (world.start[:, None] * world.policy[0]).ravel()]
    for t in range(world.horizon - 1):
        pair_to_pair = world.transition[t][..., None] * world.policy[t + 1]
        grown = probabilities[-1].reshape(-1, world.pairs, 1) * pair_to_pair.reshape(world.pairs, world.pairs)
        probabilities.append(grown.ravel())
    return probabilities


def state_probabilities(world: World) -> Array:
    """rho(s_t), indexed by (t, state)."""
    rho = [world.start]
    for t in range(world.horizon - 1):
        rho.append(np.einsum("s,sa,sax->x", rho[t], world.policy[t], world.transition[t]))
    return np.array(rho)


def divide_where_possible(numerator: Array, denominator: Array) -> Array:
    """The quotient, and zero where the denominator, a probability, is zero: nothing is compared there."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def prefix_given_state(world: World, t: int) -> Array:
    """The paper's Gamma_t(tau_{0:t} | s_t), indexed by (prefix, state)."""
    if t == 0:
        return np.ones((1, world.states))
    into_state = world.transition[t - 1].reshape(world.pairs, world.states)
    joint = prefix_probabilities(world)[t].reshape(-1, world.pairs, 1) * into_state
    joint = joint.reshape(-1, world.states)
    return divide_where_possible(joint, np.broadcast_to(state_probabilities(world)[t], joint.shape))


def step_rewards(world: World, sub_rewards: list[Array]) -> Array:
    r"""The paper's \hat r^pi, indexed by (t, state, action): differences averaged over prefixes by Gamma."""
    result = np.zeros_like(world.reward)
    for t in range(world.horizon):
        differences = sub_rewards[t + 1].reshape(-1, *world.policy.shape[1:]) - sub_rewards[t][:, None, None]
        result[t] = np.einsum("ns,nsa->sa", prefix_given_state(world, t), differences)
    return result


def q_values(world: World, rewards: Array) -> Array:
    """The policy's undiscounted action values under any reward table, indexed by (t, state, action)."""
    q = np.zeros_like(rewards)
    value = np.zeros(world.states)
    for t in reversed(range(world.horizon)):
        q[t] = rewards[t] + world.transition[t] @ value
        value = (world.policy[t] * q[t]).sum(axis=-1)
    return q


def random_sub_rewards(world: World, rng: np.random.Generator) -> list[Array]:
    """Any function of the prefix: a random number for each of 1..T steps, and zero for the empty one."""
    return [np.zeros(1)] + [rng.normal(size=world.pairs**k) for k in range(1, world.horizon + 1)]


def additive_sub_rewards(rewards: Array) -> list[Array]:
    """For every prefix the sum of its step rewards."""
    totals = [np.zeros(1)]
    for table in rewards:
        totals.append((totals[-1][:, None] + table.ravel()).ravel())
    return totals


def return_matching_sub_rewards(world: World, rng: np.random.Generator) -> list[Array]:
    """R_sub(tau_{0:T}) = R(tau) for whole episodes, and arbitrary for everything shorter."""
    return random_sub_rewards(world, rng)[:-1] + additive_sub_rewards(world.reward)[-1:]


def decomposed_sub_rewards(world: World, rng: np.random.Generator, cuts: set[int]) -> list[Array]:
    """Arbitrary, except that whole episodes match and the two parts at each of these cuts sum to R(tau).

    Prefixes and suffixes at a cut start as noise and are moved to the nearest solution of those equations.
    """
    sub_rewards = return_matching_sub_rewards(world, rng)
    episodes = np.flatnonzero(prefix_probabilities(world)[-1] > 0)
    returns = sub_rewards[-1][episodes]
    for cut in cuts:
        n_prefixes, n_suffixes = world.pairs**cut, world.pairs ** (world.horizon - cut)
        parts = np.zeros((len(episodes), n_prefixes + n_suffixes))
        rows = np.arange(len(episodes))
        parts[rows, episodes // n_suffixes] = 1
        parts[rows, n_prefixes + episodes % n_suffixes] = 1
        noise = rng.normal(size=n_prefixes + n_suffixes)
        # The equations leave this offset free. With it the differences are not just the true rewards.
        noise += np.repeat([1, -1], [n_prefixes, n_suffixes])
        solution = noise + np.linalg.lstsq(parts, returns - parts @ noise)[0]
        np.testing.assert_allclose(parts @ solution, returns, atol=EXACT)
        sub_rewards[cut] = solution[:n_prefixes]
    return sub_rewards


def mean_given_pair(world: World, t: int, episode_values: Array) -> Array:
    """E[value(tau_{0:T}) | s_t, a_t] under the plain law of episodes, indexed by (state, action)."""
    shape = (world.pairs**t, world.pairs, -1)
    weights = prefix_probabilities(world)[-1].reshape(shape)
    total = (weights * episode_values.reshape(shape)).sum(axis=(0, 2))
    return divide_where_possible(total, weights.sum(axis=(0, 2))).reshape(world.policy.shape[1:])


def on_whole_episodes(world: World, prefix_values: Array) -> Array:
    """For every episode the value of its prefix."""
    return np.repeat(prefix_values, world.pairs**world.horizon // len(prefix_values))


def later_reward_by_plain_law(world: World, sub_rewards: list[Array]) -> Array:
    """E[R_sub(tau_{0:T}) - R_sub(tau_{0:t+1}) | s_t, a_t], the right-hand side of Theorem 2."""
    whole = sub_rewards[-1]
    return np.array(
        [mean_given_pair(world, t, whole - on_whole_episodes(world, sub_rewards[t + 1])) for t in range(world.horizon)]
    )


def state_given_pair(world: World, t: int, k: int) -> Array:
    """The paper's mu(s_k | s_t, a_t) for k > t, indexed by (pair at t, state at k)."""
    mu = world.transition[t].reshape(world.pairs, world.states)
    for i in range(t + 1, k):
        mu = mu @ np.einsum("sa,sax->sx", world.policy[i], world.transition[i])
    return mu


def upsilon(world: World, t: int, k: int) -> Array:
    """The paper's Upsilon_{k+1}(tau_{0:k+1} | s_t, a_t), indexed by (pair at t, prefix of k + 1 steps).

    For k = t, which the paper uses but does not define, s_k and a_k are the given ones.
    """
    if k == t:
        last_pair = np.eye(world.pairs).reshape(world.pairs, *world.policy.shape[1:])
    else:
        last_pair = state_given_pair(world, t, k)[..., None] * world.policy[k]
    joint = np.einsum("psa,ns->pnsa", last_pair, prefix_given_state(world, k))
    return joint.reshape(world.pairs, -1)


def without_last_step(world: World, law: Array) -> Array:
    """The law of prefixes one step shorter: the last pair summed out."""
    return law.reshape(world.pairs, -1, world.pairs).sum(axis=-1)


def later_reward_by_upsilon(world: World, sub_rewards: list[Array]) -> Array:
    """The right-hand side of Theorem 2 with the laws which the appendix puts into its last but one line."""
    last = world.horizon - 1
    result = [
        upsilon(world, t, last) @ sub_rewards[-1] - upsilon(world, t, t) @ sub_rewards[t + 1]
        for t in range(world.horizon)
    ]
    return np.reshape(result, world.policy.shape)


RightSide = Callable[[World, list[Array]], Array]
each_reading = pytest.mark.parametrize(
    "right_side", [later_reward_by_plain_law, later_reward_by_upsilon], ids=["plain law", "upsilon"]
)


def later_step_rewards(world: World, sub_rewards: list[Array]) -> Array:
    """The left-hand side of Theorem 2: the expected sum of the step rewards after (s_t, a_t)."""
    rewards = step_rewards(world, sub_rewards)
    return q_values(world, rewards) - rewards


def pair_probabilities(world: World) -> Array:
    return state_probabilities(world)[..., None] * world.policy


def theorem_2_gap(world: World, sub_rewards: list[Array], right_side: Array) -> Array:
    """Left minus right for every reachable (t, s, a); zero for the others, which have no conditional law."""
    gap = later_step_rewards(world, sub_rewards) - right_side
    return np.where(pair_probabilities(world) > 0, gap, 0)


def action_dependence(world: World, table: Array) -> Array:
    """How far a (t, state, action) table is from a function of the state, per t, over reachable states."""
    spread = np.ptp(table, axis=-1)
    return np.where(state_probabilities(world) > 0, spread, 0).max(axis=-1)


def value_error(world: World, sub_rewards: list[Array]) -> Array:
    """Q_hat - Q, indexed by (t, state, action)."""
    return q_values(world, step_rewards(world, sub_rewards)) - q_values(world, world.reward)


def same_greedy_policy(world: World, sub_rewards: list[Array]) -> bool:
    """Whether Q_hat and Q prefer the same action in every reachable state."""
    proxy, true = q_values(world, step_rewards(world, sub_rewards)), q_values(world, world.reward)
    same = proxy.argmax(axis=-1) == true.argmax(axis=-1)
    return bool(same[state_probabilities(world) > 0].all())


def window_sum_expected(world: World, rewards: Array, t: int, h: int) -> float:
    """The expected sum of the rewards of steps t .. t+h-1."""
    return float((pair_probabilities(world) * rewards)[t : t + h].sum())


def sub_reward_difference_expected(world: World, sub_rewards: list[Array], t: int, h: int) -> float:
    probabilities = prefix_probabilities(world)
    return float(probabilities[t + h] @ sub_rewards[t + h] - probabilities[t] @ sub_rewards[t])


def all_windows(horizon: int) -> list[tuple[int, int]]:
    return [(t, h) for h in range(1, horizon + 1) for t in range(horizon - h + 1)]


# --- the definitions ---


@each_seed
@each_dynamics
def test_step_reward_is_the_mean_difference_over_all_episodes_through_state_and_action(
    seed: int, deterministic: bool
) -> None:
    # The paper conditions prefixes on s_t by a formula; here the same is read off the enumerated episodes.
    rng = np.random.default_rng(seed)
    world = random_world(rng, deterministic)
    sub_rewards = random_sub_rewards(world, rng)
    by_formula = step_rewards(world, sub_rewards)
    reachable = pair_probabilities(world) > 0
    for t in range(HORIZON):
        later, earlier = (on_whole_episodes(world, sub_rewards[k]) for k in (t + 1, t))
        by_episodes = mean_given_pair(world, t, later - earlier)
        np.testing.assert_allclose(by_formula[t][reachable[t]], by_episodes[reachable[t]], atol=EXACT)


# --- Theorem 1 ---


@each_seed
@each_dynamics
def test_expected_step_rewards_telescope_to_differences_of_sub_trajectory_rewards(
    seed: int, deterministic: bool
) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, deterministic)
    sub_rewards = random_sub_rewards(world, rng)
    rewards = step_rewards(world, sub_rewards)
    for t, h in all_windows(HORIZON):
        left = window_sum_expected(world, rewards, t, h)
        right = sub_reward_difference_expected(world, sub_rewards, t, h)
        assert left == pytest.approx(right, abs=EXACT), (t, h)


def test_without_the_time_step_in_the_state_only_whole_episodes_telescope() -> None:
    rng = np.random.default_rng(0)
    world = random_world(rng)
    sub_rewards = random_sub_rewards(world, rng)
    weights = pair_probabilities(world)
    # What a regression of the differences on (s, a) alone would find.
    timeless = (weights * step_rewards(world, sub_rewards)).sum(axis=0) / weights.sum(axis=0)
    rewards = np.broadcast_to(timeless, weights.shape)
    error = {
        (t, h): window_sum_expected(world, rewards, t, h) - sub_reward_difference_expected(world, sub_rewards, t, h)
        for t, h in all_windows(HORIZON)
    }
    assert abs(error.pop((0, HORIZON))) < EXACT
    assert max(abs(e) for (_, h), e in error.items() if h >= 2) > CLEARLY


# --- Theorem 2: how far the appendix's proof carries ---


@each_seed
def test_later_step_rewards_equal_the_upsilon_sums_before_any_cancellation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    sub_rewards = random_sub_rewards(world, rng)
    left = later_step_rewards(world, sub_rewards)
    for t in range(HORIZON):
        right = np.zeros(world.pairs)
        for k in range(t + 1, HORIZON):
            law = upsilon(world, t, k)
            np.testing.assert_allclose(law.sum(axis=-1), 1)
            right += law @ sub_rewards[k + 1] - without_last_step(world, law) @ sub_rewards[k]
        np.testing.assert_allclose(left[t].ravel(), right, atol=EXACT)


@each_seed
def test_upsilon_laws_of_neighbouring_lengths_disagree_so_the_terms_do_not_cancel(seed: int) -> None:
    world = random_world(np.random.default_rng(seed))
    for t in range(HORIZON - 1):
        for k in range(t, HORIZON - 1):
            left_over = upsilon(world, t, k) - without_last_step(world, upsilon(world, t, k + 1))
            assert np.abs(left_over).sum(axis=-1).max() > CLEARLY, (t, k)


def test_upsilon_laws_agree_and_are_the_plain_law_if_the_state_determines_the_prefix() -> None:
    world = random_history_tree(np.random.default_rng(0))
    reachable = pair_probabilities(world).reshape(world.horizon, -1) > 0
    episodes = prefix_probabilities(world)[-1]
    for t in range(world.horizon - 1):
        for k in range(t, world.horizon - 1):
            left_over = upsilon(world, t, k) - without_last_step(world, upsilon(world, t, k + 1))
            np.testing.assert_allclose(left_over[reachable[t]], 0, atol=EXACT)
        through_pair = np.arange(len(episodes)) // world.pairs ** (world.horizon - 1 - t) % world.pairs
        whole_law = upsilon(world, t, world.horizon - 1)
        for pair in np.flatnonzero(reachable[t]):
            plain = np.where(through_pair == pair, episodes, 0)
            np.testing.assert_allclose(whole_law[pair], plain / plain.sum(), atol=EXACT)


# --- Theorem 2: where it fails ---


@each_seed
@each_reading
def test_conditional_theorem_fails_for_arbitrary_sub_trajectory_rewards_before_the_last_step(
    seed: int, right_side: RightSide
) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    sub_rewards = random_sub_rewards(world, rng)
    gap = np.abs(theorem_2_gap(world, sub_rewards, right_side(world, sub_rewards))).max(axis=(1, 2))
    assert (gap[:-1] > CLEARLY).all()
    assert gap[-1] < EXACT  # no later steps: zero on both sides


@each_seed
def test_conditional_theorem_read_with_upsilon_fails_even_for_additive_sub_trajectory_rewards(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    sub_rewards = additive_sub_rewards(world.reward)
    gap = theorem_2_gap(world, sub_rewards, later_reward_by_upsilon(world, sub_rewards))
    assert np.abs(gap).max() > CLEARLY


@each_seed
@pytest.mark.parametrize("omitted", range(1, HORIZON))
def test_conditional_theorem_fails_if_one_cut_is_not_decomposed(seed: int, omitted: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    sub_rewards = decomposed_sub_rewards(world, rng, cuts=set(range(1, HORIZON)) - {omitted})
    gap = theorem_2_gap(world, sub_rewards, later_reward_by_plain_law(world, sub_rewards))
    assert np.abs(gap).max() > CLEARLY


# --- Theorem 2: where it holds ---


@each_seed
@each_dynamics
@each_reading
def test_conditional_theorem_holds_on_average_over_state_and_action(
    seed: int, deterministic: bool, right_side: RightSide
) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, deterministic)
    sub_rewards = random_sub_rewards(world, rng)
    gap = theorem_2_gap(world, sub_rewards, right_side(world, sub_rewards))
    np.testing.assert_allclose((pair_probabilities(world) * gap).sum(axis=(1, 2)), 0, atol=EXACT)


@each_seed
@each_dynamics
def test_conditional_theorem_holds_for_additive_sub_trajectory_rewards(seed: int, deterministic: bool) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, deterministic)
    sub_rewards = additive_sub_rewards(rng.normal(size=world.reward.shape))
    gap = theorem_2_gap(world, sub_rewards, later_reward_by_plain_law(world, sub_rewards))
    np.testing.assert_allclose(gap, 0, atol=EXACT)


@each_seed
@each_dynamics
def test_conditional_theorem_holds_if_every_cut_is_decomposed(seed: int, deterministic: bool) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, deterministic)
    sub_rewards = decomposed_sub_rewards(world, rng, cuts=set(range(1, HORIZON)))
    gap = theorem_2_gap(world, sub_rewards, later_reward_by_plain_law(world, sub_rewards))
    np.testing.assert_allclose(gap, 0, atol=EXACT)


@each_seed
def test_conditional_theorem_holds_if_the_state_determines_the_prefix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_history_tree(rng)
    sub_rewards = random_sub_rewards(world, rng)
    gap = theorem_2_gap(world, sub_rewards, later_reward_by_plain_law(world, sub_rewards))
    np.testing.assert_allclose(gap, 0, atol=EXACT)


# --- the lemma and its use ---


def softmax_policy_gradient(world: World, q: Array) -> Array:
    """E[grad log pi(a_t | s_t) q(s_t, a_t)] with respect to the logits of a tabular softmax policy."""
    grad_log = np.eye(ACTIONS) - world.policy[..., None, :]  # (t, state, action, logit)
    return np.einsum("tsa,tsa,tsal->tsl", pair_probabilities(world), q, grad_log)


@each_seed
def test_adding_a_function_of_the_state_changes_neither_greedy_policy_nor_policy_gradient(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    q = q_values(world, world.reward)
    shifted = q + rng.normal(size=(HORIZON, STATES, 1))
    np.testing.assert_array_equal(shifted.argmax(axis=-1), q.argmax(axis=-1))
    gradient = softmax_policy_gradient(world, q)
    np.testing.assert_allclose(softmax_policy_gradient(world, shifted), gradient, atol=EXACT)
    # A shift that sees the action does change it, so the equality above says something.
    other = q + rng.normal(size=q.shape)
    assert np.abs(softmax_policy_gradient(world, other) - gradient).max() > CLEARLY


@each_seed
@each_dynamics
def test_value_error_would_depend_on_the_state_only_if_the_conditional_theorem_held(
    seed: int, deterministic: bool
) -> None:
    # The paper's algebra from Theorem 2 to the lemma, with the theorem's right-hand side put in by hand.
    rng = np.random.default_rng(seed)
    world = random_world(rng, deterministic)
    sub_rewards = return_matching_sub_rewards(world, rng)
    claimed_q = step_rewards(world, sub_rewards) + later_reward_by_plain_law(world, sub_rewards)
    claimed_error = claimed_q - q_values(world, world.reward)
    true_totals = additive_sub_rewards(world.reward)
    for t, reachable in enumerate(state_probabilities(world) > 0):
        delta = (true_totals[t] - sub_rewards[t]) @ prefix_given_state(world, t)
        expected = np.repeat(delta[:, None], ACTIONS, axis=1)
        np.testing.assert_allclose(claimed_error[t][reachable], expected[reachable], atol=EXACT)


@each_seed
@each_dynamics
def test_value_error_of_the_last_step_depends_on_the_state_only(seed: int, deterministic: bool) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, deterministic)
    error = value_error(world, return_matching_sub_rewards(world, rng))
    assert action_dependence(world, error)[-1] < EXACT


@each_seed
def test_value_error_of_earlier_steps_depends_on_the_action_if_only_whole_episodes_match(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng)
    error = value_error(world, return_matching_sub_rewards(world, rng))
    assert (action_dependence(world, error)[:-1] > CLEARLY).all()


def test_greedy_policy_can_change_if_only_whole_episodes_match() -> None:
    rng = np.random.default_rng(0)
    world = random_world(rng)
    assert not same_greedy_policy(world, return_matching_sub_rewards(world, rng))


@each_seed
@each_dynamics
def test_value_error_depends_on_the_state_only_if_every_cut_is_decomposed(seed: int, deterministic: bool) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(rng, deterministic)
    sub_rewards = decomposed_sub_rewards(world, rng, cuts=set(range(1, HORIZON)))
    error = value_error(world, sub_rewards)
    np.testing.assert_allclose(action_dependence(world, error), 0, atol=EXACT)
    assert same_greedy_policy(world, sub_rewards)
    # Not because the step reward were the true reward: what the cuts leave free remains in it.
    difference = np.abs(step_rewards(world, sub_rewards) - world.reward)
    assert difference[pair_probabilities(world) > 0].max() > CLEARLY


@each_seed
def test_value_error_depends_on_the_state_only_if_the_state_determines_the_prefix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_history_tree(rng)
    sub_rewards = return_matching_sub_rewards(world, rng)
    error = value_error(world, sub_rewards)
    np.testing.assert_allclose(action_dependence(world, error), 0, atol=EXACT)
    assert same_greedy_policy(world, sub_rewards)
    assert np.abs(error).max() > CLEARLY
