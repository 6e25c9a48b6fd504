"""A film of the policy, with r̂ and its running sum drawn below the picture."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.actors.rollout import Rollout
from diaster.analysis.diagnostics import has_step_rewards
from diaster.analysis.figures.style import TRUTH, check_picture, drawing, new_figure
from diaster.config import METHODS
from diaster.envs.delayed import TRUE_REWARD
from diaster.errors import DiasterError, one_line
from diaster.media.rendering import Picture, picture_of, rendering_env
from diaster.media.subject import Subject
from diaster.rundir.files import new_file
from diaster.types import EvaluationEpisode, Stream, reset_seed

FORMATS = (".mp4", ".gif")
USUAL_SPEED, LEAST_SPEED, MOST_SPEED = 25, 15, 50  # pictures a second
MOST_FRAMES = 750
PANEL_HEIGHT, PANEL_DPI = 240, 135
LEAST_WIDTH = 480
HOLD_LAST = 20  # so that the end of a short film can be seen


class Film(NamedTuple):
    """An episode with a picture of every `stride` steps."""

    episode: EvaluationEpisode
    pictures: list[Picture]
    stride: int
    speed: float
    """Pictures a second."""
    method: str
    """Whose r̂ is drawn, in its colour."""


def check_film(out: Path) -> None:
    """Refuse what cannot be written, and missing packages, before a run is loaded."""
    check_picture(out, FORMATS)
    _find_writer(out.suffix.lower())


def write_video(run: Subject, out: Path, seed: int | None = None) -> Film:
    """Film one deterministic episode of a run's policy."""
    check_film(out)
    write = _find_writer(out.suffix.lower())
    seed = run.seeds[0] if seed is None else seed
    try:
        film = _film(run, seed)
    except DiasterError:
        raise
    except Exception as error:  # whatever the environment's own code raises
        raise DiasterError(f"'{run.config.env}' failed while it was filmed: {one_line(error)}; check it.") from error
    rewards = run.step_rewards([film.episode], seed)[0]
    temporary = _temporary(out)
    try:
        write(temporary, _with_panels(film, rewards), film.speed)
        temporary.replace(out)
    except OSError as error:
        raise DiasterError(f"'{out}' cannot be written: {error.strerror or error}.") from None
    finally:
        temporary.unlink(missing_ok=True)
    return film


def _temporary(out: Path) -> Path:
    """A new file in the same folder, of the same kind."""
    try:
        handle, path = new_file(out.parent, f".{out.stem}.", out.suffix.lower())
    except OSError as error:
        raise DiasterError(f"'{out}' cannot be written: {error.strerror}.") from None
    os.close(handle)
    return path


def _find_writer(suffix: str) -> Callable[[Path, Iterator[Picture], float], None]:
    """The function that writes the file, found before any time is spent on pictures."""
    try:
        if suffix == ".gif":
            import imageio.v2

            return partial(_write_gif, imageio.v2.get_writer)
        import imageio_ffmpeg

        return partial(_write_mp4, imageio_ffmpeg.get_ffmpeg_exe())
    except ImportError as error:
        raise DiasterError(
            f"a video needs the package '{error.name}', which is not installed; run pip install 'diaster[video]'."
        ) from None
    except RuntimeError as error:
        raise DiasterError(f"no ffmpeg was found ({one_line(error)}); run pip install 'diaster[video]'.") from None


def _write_gif(writer_of: Any, out: Path, pictures: Iterator[Picture], speed: float) -> None:
    with writer_of(out, duration=1000 / speed, loop=0) as writer:
        for picture in pictures:
            writer.append_data(picture)


def _write_mp4(ffmpeg: str, out: Path, pictures: Iterator[Picture], speed: float) -> None:
    """Feed raw pictures to ffmpeg. imageio would fork a process that has JAX's threads, which may hang."""
    first = next(pictures)
    height, width = first.shape[:2]
    into = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{speed:g}", "-i", "-"]
    kind = ["-an", "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    command = [ffmpeg, "-y", "-loglevel", "error", *into, *kind, str(out)]
    with tempfile.TemporaryFile() as complaint:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaint)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # ffmpeg says why
                for picture in (first, *pictures):
                    pipe.write(picture.tobytes())
        finally:
            failed = process.wait()
        if failed:
            complaint.seek(0)
            said = complaint.read(1000).decode(errors="replace").strip().splitlines()
            raise OSError(said[-1] if said else f"ffmpeg ended with exit code {failed}")


def _film(run: Subject, seed: int) -> Film:
    act = run.actor(seed)
    with rendering_env(run.make_env, run.config.env) as env:
        # Gymnasium says how many steps a second has; a film needs fewer pictures.
        steps_per_second = float(env.metadata.get("render_fps") or USUAL_SPEED)
        stride = max(1, round(steps_per_second / USUAL_SPEED), -(-run.spec.horizon // MOST_FRAMES))
        speed = min(MOST_SPEED, max(LEAST_SPEED, steps_per_second / stride))
        rollout = Rollout(lambda: env, run.spec, f"seed {seed}'s video", run.config.feedback)
        obs, episode = rollout.reset(reset_seed(seed, Stream.RECORD_RESET, 0, 0)), None
        hidden, pictures = list[float](), [picture_of(env)]
        while episode is None:
            obs, episode = rollout.step(act(obs))
            hidden.append(rollout.info[TRUE_REWARD])
            if len(hidden) % stride == 0 or episode is not None:
                pictures.append(picture_of(env))
    shown = EvaluationEpisode(episode, np.asarray(hidden, np.float32))
    if not has_step_rewards([shown]):
        shown = shown._replace(true_reward=None)
    return Film(shown, pictures, stride, speed, run.config.method.name)


def _with_panels(film: Film, rewards: NDArray[np.float64]) -> Iterator[Picture]:
    """Each picture above the curves up to its step; the curves are drawn once and uncovered step by step."""
    height, width = film.pictures[0].shape[:2]
    wide = max(LEAST_WIDTH, width) // 2 * 2
    before, after, left, right = _panels(film, rewards, wide)
    tall = (height + len(before)) // 2 * 2  # codecs want even sides
    length = film.episode.episode.length
    for number, picture in enumerate(film.pictures):
        step = min(number * film.stride, length)
        place = round(left + (right - left) * step / length)
        panel = before.copy()
        panel[:, :place] = after[:, :place]
        if step < length:
            panel[:, place : place + 2] = (0x55, 0x55, 0x55)
        whole = np.full((height + len(panel), wide, 3), 255, np.uint8)
        offset = (wide - width) // 2
        whole[:height, offset : offset + width] = picture
        whole[height:] = panel
        for _ in range(HOLD_LAST if step == length else 1):
            yield whole[:tall]


def _panels(film: Film, rewards: NDArray[np.float64], width: int) -> tuple[Picture, Picture, float, float]:
    """The axes without and with their curves, and the places of their first and last step, in pixels."""
    images, ends = [], (0.0, 0.0)
    true = film.episode.true_reward
    time = np.arange(1, len(rewards) + 1)
    with drawing():
        for with_curves in (False, True):
            figure = new_figure(width / PANEL_DPI, PANEL_HEIGHT / PANEL_DPI)
            figure.set_dpi(PANEL_DPI)
            of_steps, of_sums = figure.subplots(2, 1, sharex=True)
            for axes, values, name in ((of_steps, rewards, "r̂"), (of_sums, np.nancumsum(rewards), "sum of r̂")):
                other = None if true is None else (true if axes is of_steps else np.cumsum(true))
                shown = 1.0 if with_curves else 0.0
                if other is not None:
                    axes.plot(time, other, color=TRUTH, linestyle="--", linewidth=0.9, alpha=0.6 * shown)
                axes.plot(time, values, color=METHODS[film.method].colour, linewidth=1.2, alpha=shown)
                axes.set_ylabel(name)
                axes.set_xlim(0, len(rewards))
                axes.grid(True)
            of_sums.set_xlabel("step" if true is None else "step (dashed: the hidden true reward)")
            images.append(_pixels(figure, width))
            box = of_sums.get_window_extent()
            ends = float(box.x0), float(box.x1)
    return images[0], images[1], *ends


def _pixels(figure: Any, width: int) -> Picture:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    picture: Picture = np.asarray(canvas.buffer_rgba())[:PANEL_HEIGHT, :width, :3].copy()
    return picture
