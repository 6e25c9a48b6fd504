import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "examples" / "turns.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("turns_example", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its records are looked up by their module's name
    spec.loader.exec_module(module)
    return module


def attempts(example, n: int = 60):
    random = np.random.default_rng(0)
    world = example.make_world(random)
    return [attempt for prompt in range(n) for attempt in example.attempts_at(world, prompt, random)]


def test_two_turns_decide_and_luck_rarely(example) -> None:
    found = attempts(example)
    agrees = [all(attempt.went_right) == bool(attempt.episode["outcome"]) for attempt in found]
    assert 1.0 - np.mean(agrees) == pytest.approx(example.LUCK, abs=0.03)
    for attempt in found:
        tools = [turn["text"].split(":")[0] for turn in attempt.episode["turns"]]
        assert [n for n, tool in enumerate(tools) if tool in ("search", "edit")] == sorted(attempt.decisive)


def test_other_turns_tell_nothing_of_the_outcome(example) -> None:
    fine, outcome = [], []
    for attempt in attempts(example, 200):
        texts = [turn["text"] for turn in attempt.episode["turns"]]
        others = [text.endswith("fine") for n, text in enumerate(texts) if n not in attempt.decisive]
        fine.append(np.mean(others))
        outcome.append((attempt.episode["group"], attempt.episode["outcome"]))
    groups = {group for group, _ in outcome}
    within = []
    for group in groups:
        places = [n for n, (name, _) in enumerate(outcome) if name == group]
        x, y = (np.array([values[n] for n in places]) for values in (fine, [o for _, o in outcome]))
        within.append(((x - x.mean()) * (y - y.mean())).mean())
    assert abs(np.mean(within)) < 3.0 * np.std(within) / len(within) ** 0.5


def test_credit_that_is_compared_sums_to_the_same(example) -> None:
    for attempt in attempts(example, 3):
        expected = attempt.episode["outcome"] - 0.4
        assert example.uniform(attempt, 0.4).sum() == pytest.approx(expected)
        assert example.discounted(attempt, 0.4).sum() == pytest.approx(expected)
        assert abs(example.discounted(attempt, 0.4)[-1]) > abs(example.discounted(attempt, 0.4)[0])


def test_the_share_is_that_of_the_decisive_turns(example) -> None:
    found = attempts(example, 2)
    all_of_it = []
    for attempt in found:
        credit = np.zeros(len(attempt.episode["turns"]))
        credit[list(attempt.decisive)] = -1.0, 3.0
        all_of_it.append(credit)
    assert example.share(all_of_it, found) == (1.0, 0.0)
    lengths = [len(attempt.episode["turns"]) for attempt in found]
    evenly = [example.uniform(attempt, 0.4) for attempt in found]
    assert example.share(evenly, found)[0] == pytest.approx(np.mean([2.0 / n for n in lengths]))


def test_it_prints_and_draws(example, tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "turns.png"
    monkeypatch.setattr(sys, "argv", ["turns.py", "--prompts", "20", "--updates", "0", "--out", str(out)])
    with pytest.warns(UserWarning, match="held-out"):
        example.main()
    said = capsys.readouterr().out
    assert "160 attempts at 20 tasks" in said and "learnt, exact" in said and out.read_bytes()[:4] == b"\x89PNG"
