"""Draw the pictures of README and docs again, from the runs that are kept in results/ (`make figures`).

    python benchmarks/figures.py                   # into docs/images
    python benchmarks/figures.py --out build/images

A picture is a figure of some of the runs; the command `diaster figure` draws any other.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from diaster.analysis.figures import write_figure

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "results", ROOT / "docs" / "images"
SAC, XQC, MIXED = "2026-11-15-sac", "2026-11-16-xqc", ("campaign-mixed", "2026-11-19-standup")
LEVEL, FEEDBACK, SIZES = "campaign-level", "campaign-feedback", "2026-11-19-default"


class Picture(NamedTuple):
    """A figure of some of the runs."""

    figure: str
    folder: str
    only: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


PICTURES = {
    "tasks": Picture(
        "performance",
        ".",
        (LEVEL, f"{FEEDBACK}/*dense"),
        (
            f"{LEVEL}/*updates-2*=one number per episode, two updates per step",
            f"{LEVEL}/*_diaster*=one number per episode",
            f"{LEVEL}/*_rrd*=RRD",
            f"{LEVEL}/*_dense*=the hidden rewards",
            f"{FEEDBACK}/*dense=the hidden rewards, SAC",
        ),
    ),
    "summary": Picture("summary", LEVEL),
    "sizes": Picture(
        "performance",
        ".",
        (
            f"{SIZES}/*-small*",
            "campaign-default/*small*",
            *(f"{LEVEL}/{task}-v5_diaster_steps-300*" for task in ("Ant", "Walker2d", "Humanoid")),
        ),
        (f"{LEVEL}=large nets", f"{SIZES}=small nets", "campaign-default=small nets"),
    ),
    "nets-alone": Picture(
        "performance",
        ".",
        (XQC, f"{SAC}/*-v5", f"{SAC}/Hopper-v5-dense"),
        (f"{XQC}=XQC", f"{SAC}/*-dense=SAC on the hidden rewards", f"{SAC}=SAC"),
    ),
    "figures-performance": Picture("performance", SAC),
    "figures-metrics": Picture("metrics", SAC, ("Hopper*",)),
    "mixed-base": Picture(
        "performance",
        ".",
        (*MIXED, f"{XQC}/H*", f"{XQC}/Ant*", f"{XQC}/Walker*"),
        (f"{XQC}=nets alone", *(f"{folder}=mixed base" for folder in MIXED)),
    ),
    "feedback": Picture("feedback", FEEDBACK),
    "hopper-methods": Picture("performance", SAC, ("Hopper*",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        found = RESULTS / picture.folder
        write_figure(picture.figure, found, out / f"{name}.png", only=picture.only, labels=picture.labels)
        print(f"wrote {out / name}.png")


if __name__ == "__main__":
    main()
