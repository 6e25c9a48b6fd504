"""How every figure looks: one colour per method, font sizes, captions, and how pictures are written."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diaster.config import METHODS
from diaster.errors import DiasterError
from diaster.rundir.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
COLUMN, PAGE = 3.3, 6.75  # inches: a column of a paper, and the width of its text
FONT, SMALL = 7.5, 6.5  # points, as printed
DPI = 220
MOST_CAPTION_LINES = 9

# Further curves of a method keep its hue; dashes belong to the reference. Shades above 1 are lighter, below 1 darker.
# The lengths of the lists have no common divisor: a look comes again after many curves only.
VARIANT_LINES = ("-", (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1, 1, 1, 1, 1)))
VARIANT_SHADES = (1.0, 0.62, 1.4, 0.4, 0.8)
VARIANT_MARKERS = ("<", ">", "p", "*", "d", "h", "H")
REFERENCE_LINES = ("--", (0, (7, 2)), (0, (2, 2)), (0, (7, 2, 2, 2)))
REFERENCE_SHADES = (1.0, 1.35, 1.55, 1.2, 1.45)  # of black, only lighter ones
# Ordered colours for an ordered quantity (viridis), the last one darker so that it does not vanish on white.
SEQUENCE = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#d8b91a")
# A learnt reward has the colour of its method, the true one that of the reference, which learns from it.
TRUTH = METHODS["dense"].colour
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
    """The colour of a method; a further curve of the same one has its hue, another shade, line and marker."""
    lines = REFERENCE_LINES if method == "dense" else VARIANT_LINES
    marker = METHODS[method].marker
    if variant and marker:
        marker = VARIANT_MARKERS[(variant - 1) % len(VARIANT_MARKERS)]
    colour = shade(METHODS[method].colour, shade_factor(method, variant))
    return Style(colour, lines[variant % len(lines)], marker)


def shade_factor(method: str, variant: int) -> float:
    """How much darker, or above 1 lighter, than its method a curve is."""
    factors = REFERENCE_SHADES if method == "dense" else VARIANT_SHADES
    return factors[variant % len(factors)]


def shade(colour: str, factor: float) -> tuple[float, float, float]:
    """A darker shade of a colour, or above 1 a lighter one."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (part * factor if factor <= 1 else 1 - (1 - part) * (2 - factor) for part in parts)
    return red, green, blue


def check_width(width: float) -> None:
    """Refuse a width that is not between a narrow column and a poster."""
    if not 2.5 <= width <= 40.0:
        raise DiasterError(f"a width of {width:g} inches was given; it has to lie between 2.5 and 40.")


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """The settings of Matplotlib for every figure, while it is drawn and written."""
    import matplotlib

    with matplotlib.rc_context(RC), warnings.catch_warnings():
        # A name in a script that the font lacks is shown as boxes; a warning would not help the user.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, without a window or global state, that a notebook shows."""
    from diaster.analysis.figures.shown import ShownFigure

    return ShownFigure(figsize=(width, height), dpi=DPI, layout="constrained")


def add_caption(figure: Figure, lines: Sequence[str]) -> None:
    """Add lines of text below the axes; the figure grows by their height."""
    width, height = figure.get_size_inches()
    # Text is measured without a raster, and may be a little wider on one.
    printed = [part for line in lines for part in wrapped_text(line, (0.97 * width - 0.1) * 72)]
    if len(printed) > MOST_CAPTION_LINES:
        printed = [*printed[: MOST_CAPTION_LINES - 1], "… and more, which the command prints."]
    if not printed:
        return
    added = (len(printed) * SMALL * 1.25 + 6) / 72
    grow(figure, below=added)
    height = figure.get_figheight()
    share = added / height
    for legend in figure.legends:  # one below the panels stays above the caption
        legend.set_bbox_to_anchor((0, share, 1, 1 - share), figure.transFigure)
    figure.text(0.05 / width, share - 4 / 72 / height, "\n".join(printed), fontsize=SMALL, va="top", color="#333333")


def grow(figure: Figure, above: float = 0.0, below: float = 0.0) -> None:
    """Make a figure higher, by inches that its panels do not use."""
    width, height = figure.get_size_inches()
    engine: Any = figure.get_layout_engine()
    left, bottom, wide, high = engine.get()["rect"]  # the part that panels use, in shares of the figure
    full = height + above + below
    figure.set_size_inches(width, full)
    engine.set(rect=(left, (bottom * height + below) / full, wide, high * height / full))


def text_width(text: str) -> float:
    """Of small text, in points; measured without a raster."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=SMALL), False)[0])


def wrapped_title(text: str, width: float) -> list[str]:
    """The lines of a part of a panel's title; the panel is `width` inches wide."""
    return wrapped_text(text, (width - 0.15) * 72 * SMALL / FONT)


def wrapped_text(line: str, width: float) -> list[str]:
    """A line broken into lines of at most `width` points; a word that is too long for one is cut."""
    kept = re.sub(r"(?<=\d) (?=[kM]\b)", "\N{NO-BREAK SPACE}", line)  # a number stays with its unit
    lines: list[str] = []
    for word in filter(None, kept.split(" ")):
        if lines and text_width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines += _cut(word, width)
    return lines


def _cut(word: str, width: float) -> Iterator[str]:
    """A word in pieces of at most `width` points, all but the last as long as they can be."""
    rest = word
    while len(rest) > 1 and text_width(rest) > width:
        end = next((n for n in range(len(rest) - 1, 1, -1) if text_width(rest[:n]) <= width), 1)
        yield rest[:end]
        rest = rest[end:]
    yield rest


def check_picture(out: Path, formats: Sequence[str] = FORMATS) -> None:
    """Refuse a name that cannot be written before anything is read."""
    if out.suffix.lower() not in formats:
        raise DiasterError(f"'{out}' is no picture this can write; choose a name that ends in {', '.join(formats)}.")
    if not out.parent.is_dir():
        raise DiasterError(f"the folder '{out.parent}' for '{out.name}' does not exist; make it first.")
    if out.is_dir():
        raise DiasterError(f"'{out}' is a folder; give the name of a file.")


@drawing()
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
