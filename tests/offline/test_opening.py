import numpy as np
import pytest
from data_sets import flat, told, walks, write_hdf5, write_json_lines, write_npz, write_parquet

from diaster.errors import DiasterError
from diaster.offline.episodes import judged_episodes
from diaster.offline.extras import extra
from diaster.offline.faults import Faults
from diaster.offline.opening import check_out, open_source


def arrays(**others):
    """Two episodes of a mapping with arrays, and what is wrong with them."""
    found = {"observations": np.zeros((3, 1)), "actions": np.zeros(3), "lengths": [1, 2], "returns": [0.0, 1.0]}
    return {**found, **others}


def test_every_format_gives_the_same_episodes(tmp_path) -> None:
    stored = walks(5)
    sources = [
        flat(stored),
        [{**e, "observations": e["observations"][:-1]} for e in stored],
        write_npz(tmp_path / "set.npz", flat(stored)),
        write_hdf5(tmp_path / "set.hdf5", stored),
        write_hdf5(tmp_path / "set.h5", stored),
        write_parquet(tmp_path / "set.parquet", stored),
        str(write_json_lines(tmp_path / "set.jsonl", [{**e, "observations": e["observations"][:-1]} for e in stored])),
    ]
    found = [list(judged_episodes(open_source(data, Faults()), True, False)) for data in sources]
    for episodes in found[1:]:
        for one, other in zip(episodes, found[0], strict=True):
            assert np.allclose(one.obs, other.obs, atol=1e-7) and np.allclose(one.action, other.action)
            assert one.outcome == pytest.approx(other.outcome)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("nowhere.npz", "there is no file 'nowhere.npz'; give .npz, .parquet"),
        ("episodes.csv", "'episodes.csv' is no data set that this can read; give .npz, .parquet"),
        (3, "data of the type int was given"),
        ([1, 2], "an episode is a mapping with observations, actions and return"),
        ([None], "not data of the type NoneType"),
        ({"observations": np.zeros((3, 1)), "actions": np.zeros(3)}, "the data set has no column 'lengths'"),
        (arrays(lengths=["a", "b"]), "'lengths' in the data set are not whole numbers, one per episode"),
        (arrays(lengths=[1.0, 2.0]), "'lengths' in the data set are not whole numbers, one per episode"),
        (arrays(lengths=3), "'lengths' in the data set are not whole numbers, one per episode"),
        (
            arrays(returns=1.0),
            r"the data set has 2 lengths and returns of the shape \(\); one of each belongs to an epis",
        ),
        (arrays(observations=1.0), "'observations' in the data set is a single number; give one row per step"),
        (arrays(observations=[[1.0], [2.0, 3.0], [4.0]]), "'observations' in the data set is no table of numbers"),
    ],
)
def test_what_is_no_data_set_is_refused(data, sentence: str) -> None:
    with pytest.raises(DiasterError, match=sentence):
        open_source(data, Faults())


def test_episodes_in_memory_are_named_too() -> None:
    records = [*told(walks(2)), {**told(walks(1))[0], "return": None}]
    with pytest.raises(DiasterError, match=r"^episode 2: it has neither a return"):
        list(judged_episodes(open_source(records, Faults()), True, False))


def test_episodes_in_memory_have_no_file_to_be_written_beside(tmp_path) -> None:
    for data in (told(walks(2)), arrays()):
        with pytest.raises(DiasterError, match="cannot be written from episodes at hand; write a Minari data set, or"):
            check_out(open_source(data, Faults()), tmp_path / "new.npz")


def test_places_that_cannot_be_written_to_are_refused_before_anything_is_computed(tmp_path) -> None:
    path = write_npz(tmp_path / "set.npz", flat(walks(2)))
    source = open_source(path, Faults())
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "again.npz").symlink_to(path)
    write_npz(tmp_path / "earlier.npz", flat(walks(2)))
    for out, sentence in (
        (path, "is the data set itself, which is never changed"),
        (tmp_path / "again.npz", "is the data set itself, which is never changed"),
        (tmp_path / "earlier.npz", r"earlier\.npz' is there already; choose another name, or remove it"),
        (tmp_path / "no" / "new.npz", "the folder '.*no' for 'new.npz' does not exist"),
        (tmp_path / "folder.npz", "is a folder; give the name of a file"),
        (tmp_path / "new.parquet", r"is of another format than .*; write the same one \(.npz\), or a Minari data set"),
        (tmp_path / "new.txt", "is no data set that this can write"),
    ):
        with pytest.raises(DiasterError, match=sentence):
            check_out(source, out)
    check_out(source, tmp_path / "new.npz")


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    with pytest.raises(DiasterError, match=r"Such files need no_such_package; .* pip install 'diaster\[abc\]'"):
        extra("no_such_package", "abc", "Such files")
