"""A method where observations are images: an encoder stands before it, and it sees features.

The encoder is shared. It is a part of the decomposer's state, and so is saved with it; the agent learns from the same
features and acts with a copy of the net. It learns by itself (`nn/encoder.py`), so methods and agents stay as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from diaster.decomposers import Decomposer, Features, Metrics
from diaster.nn.encoder import EncoderState, encode, encoder_state, learn_features
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, draw_steps, gather_numbered
from diaster.types import EnvSpec

BATCH = 64  # steps


class OnImages(NamedTuple):
    """The encoder, and what the method carries."""

    encoder: EncoderState
    method: Any


def behind_an_encoder(method: Decomposer) -> Decomposer:
    """The method, shown features in the place of images."""

    def init(key: Array, spec: EnvSpec) -> OnImages:
        assert spec.image is not None
        encoder = encoder_state(jax.random.fold_in(key, 7), spec.image.side, spec.image.channels, spec.action_dim)
        return OnImages(encoder, method.init(key, spec.of_features))

    def seen(state: OnImages, steps: Steps) -> Steps:
        if steps.obs.dtype != jnp.uint8:  # they were gathered from a store that shows features
            return steps
        # What is not used of it is not computed: programs are compiled as a whole.
        obs, next_obs = (encode(state.encoder.net, part) for part in (steps.obs, steps.next_obs))
        return steps._replace(obs=obs, next_obs=next_obs)

    def ingest(state: OnImages, store: EpisodeStore, block: EpisodeBlock) -> OnImages:
        block = block._replace(obs=encode(state.encoder.net, jnp.asarray(block.obs)))
        return state._replace(method=method.ingest(state.method, _shown(state, store), block))

    def reward(state: OnImages, steps: Steps) -> Array:
        return method.reward(state.method, seen(state, steps))

    def draw(state: OnImages, store: EpisodeStore, key: Array) -> Any:
        assert method.draw is not None
        return method.draw(state.method, _shown(state, store), key)

    def update(state: OnImages, batch: Any) -> tuple[OnImages, Metrics]:
        assert method.update is not None
        new, metrics = method.update(state.method, batch)
        return state._replace(method=new), metrics

    def label(state: OnImages, steps: Steps) -> Array:
        assert method.label is not None
        return method.label(state.method, seen(state, steps))

    return method._replace(
        init=init,
        ingest=ingest,
        reward=reward,
        scale=lambda state: method.scale(state.method),
        saved=("encoder.net", *(f"method.{field}" for field in method.saved)),
        draw=draw if method.draw is not None else None,
        update=update if method.update is not None else None,
        label=label if method.label is not None else None,
        features=Features(lambda state: state.encoder.net, _learn),
    )


def _learn(state: OnImages, store: EpisodeStore, key: Array) -> tuple[OnImages, Metrics]:
    """One gradient step of the encoder on stored steps."""
    draw_key, learn_key = jax.random.split(key)
    steps = gather_numbered(store, draw_steps(store, draw_key, BATCH))
    encoder, loss = learn_features(state.encoder, learn_key, steps.obs, steps.action, steps.next_obs)
    return state._replace(encoder=encoder), {"feature_loss": loss}


def _shown(state: OnImages, store: EpisodeStore) -> EpisodeStore:
    return store._replace(encoder=state.encoder.net)
