"""What the learner knows of the toy environments."""

from __future__ import annotations

import toy_envs

from diaster.envs.making import describe_env, make_env
from diaster.types import EnvSpec


def spec_of(env_id: str, horizon: int = toy_envs.HORIZON) -> EnvSpec:
    env = make_env(env_id, horizon)
    return describe_env(env, env_id, horizon)
