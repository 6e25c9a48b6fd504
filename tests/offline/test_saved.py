import json
import warnings

import numpy as np
import pytest
import safetensors.numpy
from data_sets import told, walks

import diaster
from diaster.errors import DiasterError
from diaster.offline.decomposition import Decomposition
from diaster.offline.saved import ARRAYS, FACTS, check_folder


@pytest.fixture(scope="module")
def model() -> Decomposition:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return diaster.fit(told(walks(24)), updates=0, method={"name": "rrd", "hidden": 8})


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "model")
    return tmp_path / "model"


def changed(folder, change) -> None:
    facts = json.loads((folder / FACTS).read_text())
    change(facts)
    (folder / FACTS).write_text(json.dumps(facts))


def test_a_model_is_arrays_facts_and_a_page(folder) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [FACTS, ARRAYS, "report.html"]
    facts = json.loads((folder / FACTS).read_text())
    assert facts["rewards"] == "the reward at t belongs to (s_t, a_t), or to turn t"
    assert facts["settings"]["method"]["name"] == "rrd" and facts["data"]["fitted"] == 19


def test_a_folder_that_holds_something_is_refused(folder, tmp_path) -> None:
    with pytest.raises(DiasterError, match="is there already and not an empty folder"):
        check_folder(folder)
    (tmp_path / "file").touch()
    with pytest.raises(DiasterError, match="is there already"):
        check_folder(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda facts: facts.update(version=2), "is of version 2, and this diaster reads version 1"),
        (lambda facts: facts.pop("spec"), "is damaged: 'spec' is missing"),
        (lambda facts: facts["spec"].update(obs_dim=10**12), "is damaged: observations and actions have"),
        (lambda facts: facts["spec"].update(obs_dim=-1), "is damaged: observations and actions have"),
        (lambda facts: facts["spec"].update(horizon="long"), "is damaged: the horizon is long"),
        (lambda facts: facts["spec"].update(action_low=[0.0]), "is damaged: the bounds of actions"),
        (lambda facts: facts.update(base_rate=3.0), "is damaged: the base rate is 3.0"),
        (lambda facts: facts.update(form=None), "is damaged"),
        (lambda facts: facts["settings"].update(seed="x"), "'seed' in the call is 'x'"),
        (lambda facts: facts["settings"]["method"].update(hidden=10**9), "method.hidden=1000000000 is too large"),
        (lambda facts: facts["settings"]["method"].update(hidden=16), "does not belong to this run's configuration"),
        (lambda facts: facts["spec"].update(obs_dim=4), "does not belong to this run's configuration"),
    ],
)
def test_facts_that_cannot_be_true_are_refused(folder, change, sentence: str) -> None:
    changed(folder, change)
    with pytest.raises(DiasterError, match=sentence):
        Decomposition.load(folder)


def test_files_that_are_damaged_missing_or_links_are_refused(folder, tmp_path) -> None:
    with pytest.raises(DiasterError, match="holds no model; give a folder that 'diaster fit -o' has written"):
        Decomposition.load(tmp_path)
    content = (folder / ARRAYS).read_bytes()
    (folder / ARRAYS).write_bytes(content[: len(content) // 2])
    with pytest.raises(DiasterError, match="is damaged"):
        Decomposition.load(folder)
    (folder / ARRAYS).unlink()
    (folder / ARRAYS).symlink_to("/dev/zero")
    with pytest.raises(DiasterError, match="is a link"):
        Decomposition.load(folder)
    (folder / FACTS).write_text("{}")
    with pytest.raises(DiasterError, match="is of version None"):
        Decomposition.load(folder)
    (folder / FACTS).write_text("[" * 10_000)
    with pytest.raises(DiasterError, match="is damaged"):
        Decomposition.load(folder)


def test_numbers_that_are_not_finite_are_refused(folder) -> None:
    arrays = safetensors.numpy.load((folder / ARRAYS).read_bytes())
    name = next(name for name in arrays if name.startswith("step_reward"))
    arrays[name] = np.full_like(arrays[name], np.nan)
    (folder / ARRAYS).write_bytes(safetensors.numpy.save(arrays))
    with pytest.raises(DiasterError, match="not finite"):
        Decomposition.load(folder)


def test_a_model_whose_writing_was_cut_off_is_none(folder) -> None:
    (folder / FACTS).unlink()
    with pytest.raises(DiasterError, match="holds no model"):
        Decomposition.load(folder)
