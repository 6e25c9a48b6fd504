"""Films of a policy: files that players read, and sentences where there can be none."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import toy_envs

from diaster.errors import DiasterError
from diaster.media import video
from diaster.media.video import Film
from diaster.run import load


def write_video(path: Path, out: Path, seed: int | None = None) -> Film:
    video.check_film(out)
    return video.write_video(load(path), out, seed)


def test_a_film_is_of_the_kind_its_name_says(runner: Path, tmp_path: Path) -> None:
    for suffix, magic in ((".mp4", b"ftyp"), (".gif", b"GIF8")):
        out = tmp_path / suffix / f"run{suffix}"
        out.parent.mkdir()
        film = write_video(runner, out, seed=8)
        assert magic in out.read_bytes()[:16]
        assert list(out.parent.iterdir()) == [out]
        assert (film.episode.episode.length, film.stride) == (10, 2)  # 50 steps a second, 25 pictures
        assert len(film.pictures) == 6
        assert film.episode.true_reward is not None


def test_the_umask_decides_who_may_see_a_film(runner: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        for mask, mode in ((0o077, 0o600), (0o002, 0o664)):
            os.umask(mask)
            write_video(runner, tmp_path / "run.gif")
            assert oct((tmp_path / "run.gif").stat().st_mode & 0o777) == oct(mode), oct(mask)
    finally:
        os.umask(before)


def test_each_picture_stands_above_the_curves_as_far_as_they_have_come(runner: Path, tmp_path: Path) -> None:
    from PIL import Image

    write_video(runner, tmp_path / "run.gif")
    frames = []
    with Image.open(tmp_path / "run.gif") as film:
        for number in range(film.n_frames):
            film.seek(number)
            frames.append(np.asarray(film.convert("RGB")).astype(int))
    assert frames[0].shape == (30 + 240, 480, 3)
    orange = [int(((frame[..., 0] > 180) & (frame[..., 2] < 90))[30:].sum()) for frame in frames]
    assert orange[0] == 0 and orange == sorted(orange) and orange[-1] > 200


def test_an_unknown_kind_of_film_is_refused(runner: Path, tmp_path: Path) -> None:
    with pytest.raises(DiasterError, match=r"\.mp4, \.gif"):
        write_video(runner, tmp_path / "run.avi")
    with pytest.raises(DiasterError, match="does not exist; make it first"):
        write_video(runner, tmp_path / "gone" / "run.mp4")


def test_a_folder_that_cannot_be_written_to_is_a_sentence(
    runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("diaster.media.video.new_file", refuse)
    with pytest.raises(DiasterError, match=r"run\.gif' cannot be written: Permission denied"):
        write_video(runner, tmp_path / "run.gif")


def test_a_seed_that_was_not_trained_is_refused(runner: Path, tmp_path: Path) -> None:
    with pytest.raises(DiasterError, match="no seed 5"):
        write_video(runner, tmp_path / "run.mp4", seed=5)
    assert list(tmp_path.iterdir()) == []


def test_without_its_packages_a_film_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(DiasterError, match=r"'imageio_ffmpeg'.*pip install 'diaster\[video\]'"):
        write_video(tmp_path / "no run", tmp_path / "run.mp4")


def test_what_ffmpeg_complains_of_is_a_sentence_and_leaves_nothing(
    runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: "false")
    with pytest.raises(DiasterError, match="cannot be written: ffmpeg ended with exit code 1"):
        write_video(runner, tmp_path / "run.mp4")
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_fails_while_it_is_filmed_is_a_sentence(
    runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: toy_envs.RunnerToy) -> None:
        if self.time > 3:
            raise RuntimeError("the screen is gone")
        return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(toy_envs.RunnerToy, "render", fail)
    with pytest.raises(DiasterError, match="failed while it was filmed: RuntimeError: the screen is gone"):
        write_video(runner, tmp_path / "run.mp4")
    assert list(tmp_path.iterdir()) == []
