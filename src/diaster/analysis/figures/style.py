"""How every figure looks: one colour per method, font sizes, captions, and how pictures are written."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diaster.analysis.curves import Curve, Series
from diaster.analysis.notes import steps_text
from diaster.config import METHODS
from diaster.errors import DiasterError
from diaster.rundir.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
COLUMN, PAGE = 3.3, 6.75  # inches: a column of a paper, and the width of its text
FONT, SMALL = 7.5, 6.5  # points, as printed
DPI = 220
MOST_CAPTION_LINES = 9

# Further curves of a method keep its hue; dashes belong to the reference.
VARIANT_LINES = ("-", (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
VARIANT_SHADES = (1.0, 0.62, 0.4, 0.8)
# Ordered colours for an ordered quantity (viridis), the last one darker so that it does not vanish on white.
SEQUENCE = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#d8b91a")
# A learnt reward has the colour of the method, the true one that of the reference, which learns from it.
PROXY, TRUTH = METHODS["diaster"].colour, METHODS["dense"].colour
NOTHING = "#e6e6e6"

RC: Any = {
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.labelsize": FONT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "axes.grid": False,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "svg.hashsalt": "d",  # the same figure gives the same bytes
    "text.parse_math": False,  # names are shown as they are
    "axes.formatter.use_mathtext": False,
}


class Style(NamedTuple):
    """How a curve is drawn."""

    colour: Any
    line: Any = "-"
    marker: str = ""


def method_style(method: str, variant: int = 0) -> Style:
    """The colour of a method; a further curve of the same one has its hue, another shade and another line."""
    colour, marker = METHODS[method].colour, METHODS[method].marker
    if method == "dense":
        return Style(colour, "--")
    n = variant % len(VARIANT_LINES)
    return Style(shade(colour, VARIANT_SHADES[n]), VARIANT_LINES[n], marker)


def shade(colour: str, factor: float) -> tuple[float, float, float]:
    """A darker shade of a colour."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 * factor for place in (1, 3, 5))
    return red, green, blue


def series_labels(curves: Sequence[Curve]) -> dict[Series, str]:
    """A label for each series in a figure: its method, and what else is needed to tell it from the others."""
    series = list(dict.fromkeys(curve.series for curve in curves))
    agents = {agent for _, _, agent in series}
    labels = {}
    for method, preset, agent in series:
        parts = [preset] if preset != "default" else []
        parts += [agent] if len(agents) > 1 else []
        parts += ["reference"] if method == "dense" else []
        labels[method, preset, agent] = f"{method} ({', '.join(parts)})" if parts else method
    return labels


def series_styles(series: Sequence[Series]) -> dict[Series, Style]:
    """A style for each series; those of one method share its hue."""
    seen: dict[str, int] = {}
    styles = {}
    for one in series:
        styles[one] = method_style(one[0], seen.get(one[0], 0))
        seen[one[0]] = seen.get(one[0], 0) + 1
    return styles


def draw_curve(axes: Axes, curve: Curve, style: Style, label: str | None = None) -> None:
    """Mean and standard error over seeds."""
    marks = max(1, len(curve.steps) // 6)  # a few, for readers who do not see the colours
    axes.plot(
        curve.steps,
        curve.mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markevery=(marks // 2, marks),
        markersize=3.2,
        markeredgewidth=0,
        label=label,
    )
    if curve.returns.shape[1] > 1:
        axes.fill_between(
            curve.steps, curve.mean - curve.error, curve.mean + curve.error, color=style.colour, alpha=0.2, linewidth=0
        )


def label_steps(axes: Axes) -> None:
    """Steps along the bottom, short numbers, faint lines behind the curves."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    round_numbers = [1, 2, 2.5, 5, 10]
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=round_numbers))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=round_numbers))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: steps_text(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}".replace("-", "−")))
    axes.grid(True)
    axes.set_axisbelow(True)


def label_grid(places: Any, n: int, x: str, y: str) -> None:
    """Axis labels on the lowest panel of each column and the first of each row; unused places stay empty."""
    across = places.shape[1]
    for number, axes in enumerate(places.flat):
        if number >= n:
            axes.set_axis_off()
            continue
        if number + across >= n:
            axes.set_xlabel(x)
        if number % across == 0:
            axes.set_ylabel(y)


def check_width(width: float) -> None:
    """Refuse a width that is not between a narrow column and a poster."""
    if not 2.5 <= width <= 40.0:
        raise DiasterError(f"a width of {width:g} inches was given; it has to lie between 2.5 and 40.")


def panels_across(n: int, width: float, least: float = 1.55) -> int:
    """How many panels fit in a row, none too narrow to be read."""
    return max(1, min(n, int(width // least)))


def panel_height(width: float, across: int, ratio: float = 0.78) -> float:
    """The height of a panel in a row; a single one does not fill the page."""
    return min(width / across, COLUMN) * ratio


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """The settings of Matplotlib for every figure, while it is drawn and written."""
    import matplotlib

    with matplotlib.rc_context(RC), warnings.catch_warnings():
        # A name in a script that the font lacks is shown as boxes; a warning would not help the user.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, without a window or global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], width: float) -> None:
    """One for all panels, above them; as many columns as fit."""
    longest = max(map(len, labels), default=1)
    columns = max(1, min(len(labels), int(width * 72 / (longest * SMALL * 0.55 + 28))))
    rows = -(-len(labels) // columns)
    columns = -(-len(labels) // rows)  # even rows
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, columnspacing=1.2, handletextpad=0.5)


def add_caption(figure: Figure, lines: Sequence[str]) -> None:
    """Add lines of text below the axes; the figure grows by their height."""
    width, height = figure.get_size_inches()
    # Text is measured without a raster, and may be a little wider on one.
    wrapped = [part for line in lines for part in _wrapped(line, (0.97 * width - 0.1) * 72)]
    if len(wrapped) > MOST_CAPTION_LINES:
        wrapped = [*wrapped[: MOST_CAPTION_LINES - 1], "… and more, which the command prints."]
    if not wrapped:
        return
    added = (len(wrapped) * SMALL * 1.25 + 6) / 72
    figure.set_size_inches(width, height + added)
    share = added / (height + added)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, share, 1, 1 - share))
    figure.text(
        0.05 / width, share - 4 / 72 / (height + added), "\n".join(wrapped), fontsize=SMALL, va="top", color="#333333"
    )


def _wrapped(line: str, width: float) -> list[str]:
    """A line broken into lines of at most `width` points; a word that is too long for one is cut."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=SMALL)

    def wide(text: str) -> float:
        return float(text_to_path.get_text_width_height_descent(text, font, False)[0])

    most = int(width / (SMALL * 0.9))  # characters of a word that fit in any case
    kept = re.sub(r"(?<=\d) (?=[kM]\b)", "\N{NO-BREAK SPACE}", line)  # a number stays with its unit
    words = [part for word in kept.split(" ") for part in textwrap.wrap(word, most, break_on_hyphens=False)]
    lines: list[str] = []
    for word in words:
        if lines and wide(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def check_picture(out: Path, formats: Sequence[str] = FORMATS) -> None:
    """Refuse a name that cannot be written before anything is read."""
    if out.suffix.lower() not in formats:
        raise DiasterError(f"'{out}' is no picture this can write; choose a name that ends in {', '.join(formats)}.")
    if not out.parent.is_dir():
        raise DiasterError(f"the folder '{out.parent}' for '{out.name}' does not exist; make it first.")
    if out.is_dir():
        raise DiasterError(f"'{out}' is a folder; give the name of a file.")


def picture_bytes(figure: Figure, suffix: str) -> bytes:
    """The figure as a file, in the format of the suffix; the same figure gives the same bytes."""
    kind = suffix.lower().removeprefix(".")
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=dates[kind])
    return buffer.getvalue()


def write_picture(figure: Figure, out: Path) -> None:
    """Write the figure, as a whole or not at all."""
    write_atomically(out, picture_bytes(figure, out.suffix))
