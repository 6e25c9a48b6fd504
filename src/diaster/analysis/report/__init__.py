"""One page with all there is to see of a folder of runs: no network, no library, nothing beside the file.

What is shown comes from files that may be anyone's. Text is escaped, numbers are numbers, and the page's own policy
lets it run its one script, use its one style sheet and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from diaster import __version__
from diaster.analysis.curves import (
    Curve,
    Series,
    by_task,
    changed_settings,
    curves_in,
    panel_notes,
    plainest,
    series_order,
    settings_text,
)
from diaster.analysis.figures import FIGURES, draw
from diaster.analysis.figures.style import (
    COLUMN,
    PAGE,
    check_picture,
    drawing,
    picture_bytes,
    series_labels,
    series_styles,
)
from diaster.analysis.notes import sentences, steps_text
from diaster.analysis.report.command import train_command
from diaster.analysis.results import Results, read_results
from diaster.errors import DiasterError
from diaster.rundir.files import write_atomically

MOST_POINTS = 250  # of a curve: as many as a screen can show
FORMATS = (".html", ".htm")


def write_page(path: Path, out: Path) -> list[str]:
    """Write the report of the runs below a folder; returns a line for each figure that could not be drawn."""
    check_page(out)
    results = read_results(path)
    text, left_out = page_html(results)
    write_atomically(out, text.encode("utf-8", "replace"))  # names of folders may hold any bytes
    return left_out


def check_page(out: Path) -> None:
    """Refuse a name that cannot be written before anything is read."""
    if out.suffix.lower() not in FORMATS:
        raise DiasterError(f"'{out}' is no page this can write; choose a name that ends in .html.")
    check_picture(out, FORMATS)


def page_html(results: Results) -> tuple[str, list[str]]:
    """The page, and a line for each figure that could not be drawn."""
    curves = curves_in(results)
    kept = [curve for of_task in by_task(curves).values() for curve in plainest(of_task)[0]]
    labels = series_labels(curves)
    figures, left_out = _figures(results)
    script, style = (_resource(name) for name in ("page.js", "page.css"))
    title = f"{results.path.resolve().name or results.path}: runs"
    policy = (
        f"default-src 'none'; img-src data:; script-src 'sha256-{_digest(script)}'; style-src 'sha256-{_digest(style)}'"
    )
    body = [
        f"<header><h1>{_text(title)}</h1><p>{_overview(curves)}</p></header>",
        _notes(results, curves, labels),
        _returns_table(kept, labels),
        _curves_section(curves, kept, labels),
        "<section><h2>Figures</h2>",
        *figures,
        "</section>",
        _runs_section(curves, labels),
        f"<footer>diaster {_text(__version__)}, <code>diaster report {_text(_quoted(results.path))}</code></footer>",
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )
    data = _json(_curves(curves, kept, labels))
    body += [f'<script type="application/json" id="curves-data">{data}</script>', f"<script>{script}</script>"]
    return head + "\n".join(body) + "\n</body>\n</html>\n", left_out


def _resource(name: str) -> str:
    return files("diaster.analysis.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(value: object) -> str:
    return html.escape(str(value))


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element or begin a comment."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _mean_and_error(mean: float, error: float | None) -> str:
    """Both with as many digits as the mean deserves."""
    digits = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 10 else 2
    values = [mean] if error is None else [mean, error]
    return " ± ".join(f"{value:,.{digits}f}" for value in values).replace("-", "−")


def _overview(curves: list[Curve]) -> str:
    tasks, methods = ({getattr(curve, name) for curve in curves} for name in ("task", "series"))
    n_runs = sum(len(curve.seeds) for curve in curves)
    return (
        f"{n_runs} seed{'s' * (n_runs > 1)} of {len(curves)} setting{'s' * (len(curves) > 1)}: "
        f"{len(methods)} method{'s' * (len(methods) > 1)} on {len(tasks)} task{'s' * (len(tasks) > 1)}. "
        "Learnt from one number per episode, but for <code>dense</code>, the reference."
    )


def _notes(results: Results, curves: list[Curve], labels: dict[Series, str]) -> str:
    """What is missing, before anything is shown."""
    notes = list(results.notes)
    for of_task in by_task(curves).values():
        notes += panel_notes(of_task, [_name(curve, labels) for curve in of_task])
    lines = sentences(notes, most_subjects=12)
    if not lines:
        return ""
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<section class="notes"><h2>What is missing</h2><ul>{items}</ul></section>'


def _name(curve: Curve, labels: dict[Series, str]) -> str:
    """The label of a curve; its settings too where they are not the preset's."""
    changed = settings_text(changed_settings(curve.config), most=4)
    return f"{labels[curve.series]}, {changed}" if changed else labels[curve.series]


def _final(curve: Curve) -> str:
    return _mean_and_error(float(curve.mean[-1]), float(curve.error[-1]) if len(curve.seeds) > 1 else None)


def _returns_table(curves: list[Curve], labels: dict[Series, str]) -> str:
    """Tasks by methods: the last evaluation that all seeds have."""
    series = sorted({curve.series for curve in curves}, key=series_order)
    rows = []
    for task, of_task in by_task(curves).items():
        cells = []
        for one in series:
            curve = next((curve for curve in of_task if curve.series == one), None)
            if curve is None:
                cells.append("<td>–</td>")
                continue
            base = f"{len(curve.seeds)} seed{'s' * (len(curve.seeds) > 1)}, {steps_text(float(curve.steps[-1]))}"
            cells.append(f"<td>{_text(_final(curve))}<small>{_text(base)}</small></td>")
        rows.append(f"<tr><th scope='row'>{_text(task.title)}</th>{''.join(cells)}</tr>")
    heads = "".join(f"<th scope='col'>{_text(labels[one])}</th>" for one in series)
    return (
        "<section><h2>Final returns</h2><p>Mean ± standard error over seeds, at the last evaluation that all seeds "
        "of a cell have; below, how many seeds and steps that is.</p>"
        f"<div class='wide' tabindex='0'><table id='returns'><thead><tr><th scope='col'>task</th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _curves_section(curves: list[Curve], kept: list[Curve], labels: dict[Series, str]) -> str:
    others = len(curves) - len(kept)
    hint = (
        f"<label><input type='checkbox' id='all-settings'> also {others} with changed settings</label>"
        if others
        else ""
    )
    return (
        "<section><h2>Learning curves</h2><p>Return of an episode against environment steps: mean and standard error "
        "over seeds. Point at a curve to read it.</p>"
        "<form id='filters'><fieldset id='methods'><legend>methods</legend></fieldset>"
        "<fieldset id='tasks'><legend>environments</legend></fieldset>"
        f"{hint}</form><div id='curves'></div>"
        "<noscript><p>The curves need JavaScript; the figures below show them without.</p></noscript></section>"
    )


def _curves(curves: list[Curve], kept: list[Curve], labels: dict[Series, str]) -> dict[str, Any]:
    """What the script draws."""
    series = sorted({curve.series for curve in curves}, key=series_order)
    dashes = {one: style.line for one, style in series_styles(series).items()}
    return {
        "series": [{"name": labels[one], "method": one[0], "dash": _dash(dashes[one], True)} for one in series],
        "tasks": [
            {
                "title": task.title,
                "curves": [
                    {
                        "name": _name(curve, labels),
                        "series": labels[curve.series],
                        "method": curve.method,
                        "dash": _dash(dashes[curve.series], any(curve is one for one in kept)),
                        "plain": any(curve is one for one in kept),
                        "seeds": len(curve.seeds),
                        **_points(curve),
                    }
                    for curve in of_task
                ],
            }
            for task, of_task in by_task(curves).items()
        ],
    }


def _dash(line: Any, is_plain: bool) -> str:
    if not is_plain:
        return "1 3"
    if line == "--":
        return "6 4"
    return "" if line == "-" else " ".join(str(2 * part) for part in line[1])


def _points(curve: Curve) -> dict[str, list[float]]:
    """The curve, thinned to what a screen can show; its last point is always there."""
    places = np.unique(np.linspace(0, len(curve.steps) - 1, min(MOST_POINTS, len(curve.steps))).round().astype(int))
    return {
        "steps": curve.steps[places].tolist(),
        "mean": [float(f"{value:.6g}") for value in curve.mean[places]],
        "error": [float(f"{value:.4g}") for value in curve.error[places]],
    }


def _figures(results: Results) -> tuple[list[str], list[str]]:
    """Each figure with its caption and its command, or why there is none."""
    parts, left_out = [], []
    for name, (what, _) in FIGURES.items():
        command = f"diaster figure {name} {_quoted(results.path)} -o {name}.svg"
        head = f"<h3>{_text(name)}</h3><p>{_text(what)}</p>"
        try:
            wide, lines = _picture(name, results, PAGE)
            narrow, _ = _picture(name, results, COLUMN)
        except DiasterError as error:
            left_out.append(f"{name}: {error}")
            parts.append(f"<article class='absent' id='{name}'>{head}<p>Not drawn: {_text(error)}</p></article>")
            continue
        words = _text(f"{name}: {' '.join(lines)}")
        parts.append(
            f"<article id='{name}'>{head}<picture><source media='(max-width: 40rem)' srcset='{narrow}'>"
            f"<img alt='{words}' src='{wide}'></picture><pre><code>{_text(command)}</code></pre></article>"
        )
    return parts, left_out


def _picture(name: str, results: Results, width: float) -> tuple[str, list[str]]:
    """A figure as part of the page, and its caption."""
    with drawing():
        figure, lines = draw(name, results, width)
        return f"data:image/png;base64,{base64.b64encode(picture_bytes(figure, '.png')).decode()}", lines


def _runs_section(curves: list[Curve], labels: dict[Series, str]) -> str:
    """Every setting with the command that made it."""
    rows = []
    for curve in curves:
        state = "; ".join(curve.notes) or "complete"
        command = train_command(curve.config, curve.seeds)
        rows.append(
            f"<details><summary><b>{_text(curve.task.title)}</b> {_text(_name(curve, labels))} "
            f"<span>{_text(_final(curve))}</span></summary>"
            f"<p>seeds {_text(', '.join(map(str, curve.seeds)))}; {_text(steps_text(float(curve.steps[-1])))} steps; "
            f"{_text(state)}</p><pre><code>{_text(command)}</code></pre></details>"
        )
    return (
        "<section><h2>Runs and the commands that made them</h2>"
        "<p>Whatever a command does not name is a default of its method, agent and preset.</p>"
        f"{''.join(rows)}</section>"
    )
