"""Diaster: learn a policy, and a reward for every step, from one number per episode.

    import diaster

    run = diaster.train("Hopper-v5", steps=100_000, seeds=5, out="runs/hopper", progress=True)
    run.progress.to_pandas()                  # a row per seed and evaluation
    run.plot()                                # a figure of Matplotlib
    run.policy(seed=0, which="best")(obs)     # observation → action
    run.step_reward(obs, action, next_obs)    # the learnt reward, in the environment's units

    run = diaster.load("runs/hopper")         # the same, later
    run = diaster.resume("runs/hopper")       # after an interruption; steps=… makes it longer

`help(diaster.train)` explains the settings that matter, and `diaster train --help` all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diaster.analysis.figures import figure
    from diaster.analysis.plots import plot
    from diaster.decomposed.replay import Batch, DecomposedReplay
    from diaster.envs.decomposed_reward import DecomposedReward
    from diaster.envs.delayed import DelayedReward
    from diaster.errors import DiasterError
    from diaster.offline.decomposition import Decomposition
    from diaster.offline.fit import fit
    from diaster.policy.trained import Policy
    from diaster.run import Run, load
    from diaster.training.stopping import Evaluation
    from diaster.training.train import resume, train

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "DecomposedReplay",
    "DecomposedReward",
    "Decomposition",
    "DelayedReward",
    "DiasterError",
    "Evaluation",
    "Policy",
    "Run",
    "__version__",
    "figure",
    "fit",
    "load",
    "plot",
    "resume",
    "train",
]

_HOME = {
    "Batch": "diaster.decomposed.replay",
    "DecomposedReplay": "diaster.decomposed.replay",
    "DecomposedReward": "diaster.envs.decomposed_reward",
    "Decomposition": "diaster.offline.decomposition",
    "DelayedReward": "diaster.envs.delayed",
    "DiasterError": "diaster.errors",
    "Evaluation": "diaster.training.stopping",
    "Policy": "diaster.policy.trained",
    "Run": "diaster.run",
    "figure": "diaster.analysis.figures",
    "fit": "diaster.offline.fit",
    "load": "diaster.run",
    "plot": "diaster.analysis.plots",
    "resume": "diaster.training.train",
    "train": "diaster.training.train",
}


def __getattr__(name: str) -> Any:
    # JAX takes a second to import: `diaster --help` and the processes that step environments do without it.
    if name in _HOME:
        import importlib

        globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
        return globals()[name]
    raise AttributeError(f"module 'diaster' has no attribute '{name}'")


def __dir__() -> list[str]:
    # `dir` and `help` look here for names, and only then ask for what they stand for.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
