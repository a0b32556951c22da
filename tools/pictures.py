#!/usr/bin/env python3
"""Draws the README's picture: the five stages, the changed lines between them, and the speed-up of each.

Writes docs/stages_light.svg and docs/stages_dark.svg. Changed lines are those that stage_diffs.py counts; speed-ups are
`ddp_scaling.runs[].relative_speedup` of a report by bench (unless another is given, that in results/ named below), with their intervals. A report with
a run that fails parity or has no interval, or that was broken off, is refused. With --check, writes nothing and fails if a picture is not what
would be drawn.
"""

import argparse
import math
import pathlib
import sys
from xml.sax.saxutils import escape

from performance_table import load
from results import name_of
from stage_diffs import ROOT, changed_code_lines

REPORT = ROOT / "results" / "T-M_amd-epyc-2_2026-11-24.json.gz"
STAGES = [
    ("01_single_gpu", "one process, one device"),
    ("02_data_parallel", "one process, several devices"),
    ("03_ddp_spawn", "one process per device"),
    ("04_ddp_launcher", "torchrun, mpirun, srun"),
    ("05_multinode", "several nodes"),
]
MODELS = {"T": "T: 20-1, as in the official tutorial", "digits": "digits: 64-128-128-10", "S": "S: 64-128-128-10",
          "M": "M: 784-512-512-10", "L": "L: 1024-1024-1024-1024"}
# Where a report has a stage under several, the first of these that it has.
LAUNCHERS = ("none", "spawn", "torchrun", "mpirun", "srun")
BACKENDS = ("none", "nccl", "shm", "hierarchical", "gloo", "mpi")
MOST_MODELS = 2

# Colours of GitHub's own pages.
LIGHT = {"text": "#1f2328", "muted": "#59636e", "box": "#f6f8fa", "line": "#d1d9e0",
         "bars": ("#0969da", "#bc4c00"), "on_bar": "#ffffff"}
DARK = {"text": "#f0f6fc", "muted": "#9198a1", "box": "#151b23", "line": "#3d444d",
        "bars": ("#4493f8", "#db6d28"), "on_bar": "#0d1117"}
SANS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', 'Liberation Mono', monospace"

# Narrow, so that a telephone shows the letters at two thirds of their size.
WIDTH = 560
TOP, ROW, BOX_HEIGHT = 44, 78, 50
BOX_LEFT, BOX_WIDTH = 4, 214
PLOT_LEFT, PLOT_WIDTH, LABEL_WIDTH = 244, 312, 40
BAR_HEIGHT, BAR_GAP = 17, 4


class Refused(Exception):
    """The report cannot be drawn."""


def stage_runs(document):
    """The runs of the stages' main programs as they come, without speed-ups."""
    scaling = document["ddp_scaling"]
    if scaling["partial"]:
        raise Refused("partial: the benchmark was broken off, expected a whole report")
    runs = [run for run in scaling["runs"] if run["kind"] == "stage" and run["variant"] == "main"
            and run["speedup"] == "none" and run["scaling"] == "weak"
            and run.get("gradient_compression", "none") == "none" and not run.get("shard_optimizer", False)]
    for run in runs:
        if run["parity"]["ok"] is not True or run["error"] is not None:
            raise Refused(f"{run['name']}: parity.ok is {run['parity']['ok']}, error is {run['error']}; "
                          "expected every run to end on stage 01's weights")
        if not (isinstance(run["relative_speedup"], (int, float)) and 0 < run["relative_speedup"] < math.inf):
            raise Refused(f"{run['name']}: relative_speedup is {run['relative_speedup']}, expected a positive number")
        for field, known in (("launcher", LAUNCHERS), ("backend", BACKENDS)):
            if run[field] not in known:
                raise Refused(f"{run['name']}: {field} is {run[field]}, expected one of {', '.join(known)}")
    if not runs:
        raise Refused("no run of a stage with weak scaling, expected at least one")
    return runs


def control_range(document):
    """What the ratios of equal commands' steps lie between, of all controls, intervals and all. @throws Refused if none has one"""
    ends = [end for comparison in document["ddp_scaling"]["comparisons"] if comparison["kind"] == "control"
            for end in comparison["ci95"] or (math.nan,)]
    if not ends or not all(math.isfinite(end) for end in ends):
        raise Refused("a model without an A/A control, or a control without an interval, expected 6 repetitions or more")
    return min(ends), max(ends)


def order_of(run):
    return LAUNCHERS.index(run["launcher"]), BACKENDS.index(run["backend"])


def speedup(run, document):
    """(speed-up over stage 01, its least and greatest value at 95 %). @throws Refused if it has no interval"""
    if run["stage"] == STAGES[0][0]:
        return 1.0, 1.0, 1.0
    ends = next((comparison["ci95"] for comparison in document["ddp_scaling"]["comparisons"]
                 if comparison["kind"] == "baseline" and comparison["a"] == run["name"]), None)
    if ends is None:
        raise Refused(f"{run['name']}: no interval, expected 6 repetitions or more")
    # In the report a ratio of step times.
    samples = run["global_batch"] / next(other["global_batch"] for other in document["ddp_scaling"]["runs"]
                                         if other["stage"] == STAGES[0][0] and other["model"] == run["model"])
    return run["relative_speedup"], samples / ends[1], samples / ends[0]


def speedups(document):
    """The largest world size, and per model speedup() of each stage there (None where the report has no such run)."""
    runs = stage_runs(document)
    world_size = max(run["world_size"] for run in runs)
    result = {}
    for model in list(dict.fromkeys(run["model"] for run in runs))[:MOST_MODELS]:
        result[model] = []
        for stage, _ in STAGES:
            found = sorted((run for run in runs if run["stage"] == stage and run["model"] == model
                            and run["world_size"] == (1 if stage == STAGES[0][0] else world_size)), key=order_of)
            result[model].append(speedup(found[0], document) if found else None)
    return world_size, result


def text(x, y, content, colour, size=15, family=SANS, anchor="start", weight="normal"):
    return (f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" font-family="{family}" '
            f'text-anchor="{anchor}" font-weight="{weight}">{escape(content)}</text>')


def picture(document, colours):
    """The SVG as text."""
    world_size, per_model = speedups(document)
    machine, commit = document["ddp_scaling"]["machine"], str(document["ddp_scaling"]["software"]["git_commit"])
    dirty = "-dirty" if commit.endswith("-dirty") else ""
    lines_between = [changed_code_lines(f"{before}/main.cpp", f"{after}/main.cpp")
                     for (before, _), (after, _) in zip(STAGES, STAGES[1:])]
    largest = max([world_size, *(value[2] for values in per_model.values() for value in values if value)])
    scale = (PLOT_WIDTH - LABEL_WIDTH) / largest
    bottom = TOP + ROW * (len(STAGES) - 1) + BOX_HEIGHT
    height = bottom + 26 + 22 * len(per_model) + 62
    middle = BOX_LEFT + BOX_WIDTH / 2
    title = "Five stages, the changed lines between them, and the speed-up of each over stage 01"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
             f'aria-label="{title}">', f"<title>{title}</title>",
             text(BOX_LEFT, 20, "changed lines, − and +", colours["text"], weight="600"),
             text(PLOT_LEFT, 20, f"speed-up over stage 01, {world_size} ranks", colours["text"], weight="600")]
    for at, label, dash in ((1, "1", ""), (world_size, f"{world_size} is ideal", ' stroke-dasharray="4 4"')):
        x = PLOT_LEFT + scale * at
        parts.append(f'<path d="M{x:g} {TOP} V{bottom}" stroke="{colours["muted"]}"{dash}/>')
        parts.append(text(x, TOP - 6, label, colours["muted"], size=13, anchor="middle"))
    for row, (stage, what) in enumerate(STAGES):
        y = TOP + ROW * row
        parts.append(f'<rect x="{BOX_LEFT}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{colours["box"]}" '
                     f'stroke="{colours["line"]}"/>')
        parts.append(text(middle, y + 21, stage, colours["text"], size=16, family=MONO, anchor="middle", weight="600"))
        parts.append(text(middle, y + 40, what, colours["muted"], size=14, anchor="middle"))
        if row:
            tip = y - 3
            parts.append(f'<path d="M{middle:g} {y - ROW + BOX_HEIGHT + 2} V{tip} m-5 -6 l5 6 l5 -6" fill="none" '
                         f'stroke="{colours["muted"]}" stroke-width="1.5"/>')
            parts.append(text(middle + 14, y - 9, f"{lines_between[row - 1]} lines", colours["text"]))
        bars_height = len(per_model) * (BAR_HEIGHT + BAR_GAP) - BAR_GAP
        for index, values in enumerate(per_model.values()):
            bar_y = y + (BOX_HEIGHT - bars_height) / 2 + index * (BAR_HEIGHT + BAR_GAP)
            value, low, high = values[row] or (0, 0, 0)
            middle_y = bar_y + BAR_HEIGHT / 2
            parts.append(f'<rect x="{PLOT_LEFT}" y="{bar_y:g}" width="{scale * value:.1f}" height="{BAR_HEIGHT}" '
                         f'fill="{colours["bars"][index]}"/>')
            if low < high:
                ends = [PLOT_LEFT + round(scale * end, 1) for end in (low, high)]
                parts.append(f'<path d="M{ends[0]} {middle_y:g} H{ends[1]} M{ends[0]} {middle_y - 4:g} v8 M{ends[1]} {middle_y - 4:g} v8" '
                             f'stroke="{colours["text"]}" stroke-width="1.5"/>')
            # Where neither the interval nor the bar's end is.
            inside = scale * low > LABEL_WIDTH
            parts.append(text(PLOT_LEFT + 6 + (0 if inside else round(scale * high, 1)), bar_y + BAR_HEIGHT - 3.5,
                              f"{value:.2f}" if value else "not measured", colours["on_bar" if inside else "text"]))
    parts.append(f'<path d="M{PLOT_LEFT} {TOP} V{bottom}" stroke="{colours["muted"]}"/>')
    for index, model in enumerate(per_model):
        y = bottom + 28 + 22 * index
        parts.append(f'<rect x="{PLOT_LEFT}" y="{y - 12}" width="14" height="14" fill="{colours["bars"][index]}"/>')
        parts.append(text(PLOT_LEFT + 22, y, MODELS.get(model, model), colours["text"], size=14))
    least, most = control_range(document)
    parts.append(text(BOX_LEFT, height - 44, "Thin lines: 95 % intervals. Equal commands took "
                      f"{least:.2f} to {most:.2f} times as long as each other.", colours["muted"], size=13))
    parts.append(text(BOX_LEFT, height - 26, f"Measured by bench on {machine['cpu_model']}, {machine['cores']} cores, "
                      f"{document['context']['date'][:10]}, commit {commit[:12]}{dirty}.", colours["muted"], size=13))
    parts.append(text(BOX_LEFT, height - 8, f"results/{name_of(document)}.json.gz", colours["muted"], size=13))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a picture is not what would be drawn")
    parser.add_argument("report", nargs="?", type=pathlib.Path, default=REPORT, metavar="REPORT.json")
    options = parser.parse_args(arguments)
    try:
        document = load(options.report)
        pictures = {ROOT / "docs" / f"stages_{name}.svg": picture(document, colours)
                    for name, colours in (("light", LIGHT), ("dark", DARK))}
    except (OSError, ValueError, Refused) as error:
        print(f"pictures.py: {options.report}: {error}", file=sys.stderr)
        return 1
    except (KeyError, TypeError) as error:
        print(f"pictures.py: {options.report}: {error!r}, expected a report that ./bench/run.sh --json FILE writes", file=sys.stderr)
        return 1
    wrong = [path for path, svg in pictures.items() if options.check and (not path.exists() or path.read_text() != svg)]
    for path, svg in pictures.items():
        if not options.check:
            path.write_text(svg)
    for path in wrong:
        print(f"{path.relative_to(ROOT)}: not what the stages and {options.report} give; run tools/pictures.py", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
