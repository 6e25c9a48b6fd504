"""Where the toy environments come from, and what the learner knows of them."""

from __future__ import annotations

import toy_envs

from diaster.envs.making import describe_env, make_env
from diaster.envs.source import EnvSource, find_source
from diaster.types import EnvSpec


def toy_source(env_id: str) -> EnvSource:
    return find_source(env_id, imports=("toy_envs",))


def spec_of(env_id: str, horizon: int = toy_envs.HORIZON) -> EnvSpec:
    env = make_env(env_id, horizon)
    return describe_env(env, env_id, horizon)
