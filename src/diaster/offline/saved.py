"""The folder of a saved model: settings and facts in JSON, arrays in safetensors. Nothing in it can execute code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from diaster import __version__
from diaster.config.fit import FitConfig, build_fit
from diaster.errors import DiasterError
from diaster.offline.episodes import Form
from diaster.rundir.files import (
    Form as ArrayForm,
)
from diaster.rundir.files import (
    MissingFileError,
    check_tensors,
    damaged,
    read_json,
    read_tensors,
    tensor_bytes,
    write_atomically,
)
from diaster.types import EnvSpec

FACTS, ARRAYS, REPORT = "decomposition.json", "decomposition.safetensors", "report.html"
VERSION = 1
MOST_JSON_BYTES = 2**26  # the bounds of actions are in it, two numbers for each
MOST_DIM, MOST_HORIZON = 1_000_000, 100_000_000


class Facts(NamedTuple):
    """All of a model but its arrays."""

    config: FitConfig
    form: Form
    spec: EnvSpec
    base_rate: float | None  # of outcomes that are 0 or 1
    results: dict[str, Any]  # fit_r2 and what else there is to say of the fit
    data: dict[str, Any]  # what it was fitted to


def write_model(folder: Path, facts: Facts, arrays: Mapping[str, NDArray[Any]], report: str | None) -> None:
    """Write a model into a new or empty folder. What says that it is whole comes last."""
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiasterError(f"the folder '{folder}' cannot be made: {error.strerror}.") from None
    if report is not None:
        write_atomically(folder / REPORT, report.encode("utf-8", "replace"))
    write_atomically(folder / ARRAYS, safetensors.numpy.save(dict(arrays)))
    write_atomically(folder / FACTS, (json.dumps(_as_json(facts), indent=1) + "\n").encode())


def check_folder(folder: Path) -> None:
    """Refuse a place that holds something, before anything is computed."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise DiasterError(f"'{folder}' is there already and not an empty folder; choose another name, or remove it.")


def read_facts(folder: Path) -> Facts:
    """What a model's folder says of it."""
    path = folder / FACTS
    try:
        found = read_json(path, MOST_JSON_BYTES)
    except MissingFileError:
        raise DiasterError(f"'{folder}' holds no model; give a folder that 'diaster fit -o' has written.") from None
    if found.get("version") != VERSION:
        raise DiasterError(
            f"'{path}' is of version {str(found.get('version'))[:20]}, and this diaster reads version {VERSION}; fit "
            "the data again."
        )
    try:
        return _from_json(found)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise damaged(path, f"{str(error)[:80]} is missing or is not what it should be") from None
    except DiasterError:
        raise
    except ValueError as error:
        raise damaged(path, str(error)[:80]) from None


def read_arrays(folder: Path, expected: Mapping[str, ArrayForm]) -> dict[str, NDArray[Any]]:
    """The arrays of a model, if they are those that its settings ask for."""
    path = folder / ARRAYS
    found = read_tensors(path, tensor_bytes(expected))
    check_tensors(found, expected, path, finite=True)
    return found


def _as_json(facts: Facts) -> dict[str, Any]:
    spec = facts.spec
    return {
        "version": VERSION,
        "diaster": __version__,
        "rewards": "the reward at t belongs to (s_t, a_t), or to turn t",
        "form": facts.form._asdict(),
        "spec": {**spec._asdict(), "action_low": spec.action_low.tolist(), "action_high": spec.action_high.tolist()},
        "base_rate": facts.base_rate,
        "results": facts.results,
        "data": facts.data,
        "settings": dataclasses.asdict(facts.config),
    }


def _from_json(found: Mapping[str, Any]) -> Facts:
    form, spec = dict(found["form"]), dict(found["spec"])
    sizes = (form["obs_dim"], form["action_dim"], spec["obs_dim"], spec["action_dim"])
    if not all(type(size) is int and 0 <= size <= MOST_DIM for size in sizes):
        raise ValueError(f"observations and actions have {sizes} numbers")
    if type(spec["horizon"]) is not int or not 1 <= spec["horizon"] <= MOST_HORIZON:
        raise ValueError(f"the horizon is {spec['horizon']}")
    n_actions = 1 if spec["discrete"] else spec["action_dim"]
    low, high = (np.array(spec[name], np.float32) for name in ("action_low", "action_high"))
    if low.shape != (n_actions,) or high.shape != (n_actions,) or not np.isfinite([low, high]).all():
        raise ValueError("the bounds of actions are not finite numbers, one for each")
    base_rate = found["base_rate"]
    if base_rate is not None and not 0.0 < float(base_rate) < 1.0:
        raise ValueError(f"the base rate is {base_rate}")
    return Facts(
        config=build_fit(**found["settings"]),
        form=Form(form["obs_dim"], form["action_dim"], bool(form["discrete"]), tuple(map(str, form["features"]))),
        spec=EnvSpec(
            id=str(spec["id"]),
            obs_dim=spec["obs_dim"],
            action_dim=spec["action_dim"],
            action_low=low,
            action_high=high,
            action_shape=() if spec["discrete"] else (spec["action_dim"],),
            horizon=spec["horizon"],
            discrete=bool(spec["discrete"]),
            first_action=int(spec["first_action"]),
        ),
        base_rate=None if base_rate is None else float(base_rate),
        results=dict(found["results"]),
        data=dict(found["data"]),
    )
