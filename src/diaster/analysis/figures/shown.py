"""A figure that a notebook shows where it is the value of a cell, also if nobody has imported pyplot."""

from __future__ import annotations

from matplotlib.figure import Figure

from diaster.analysis.figures.style import drawing, picture_bytes

PIXELS_PER_INCH = 96  # of a page in a browser


class ShownFigure(Figure):
    """A figure of Matplotlib in every other respect."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """What IPython asks an object for: the picture, and how wide to show it."""
        with drawing():
            return picture_bytes(self, ".png"), {"width": round(self.get_figwidth() * PIXELS_PER_INCH)}
