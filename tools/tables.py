#!/usr/bin/env -S PYTHONSAFEPATH= python3
"""Fills the tables on the pages from the reports of bench that results/ keeps.

    tools/tables.py           rewrites the tables
    tools/tables.py --check   fails where a table is not what its report gives

A table stands below a marker `<!-- table: KIND [ARGUMENT] [results/FILE] -->`, up to the next blank line. KIND:

    scaling T,M[:NAME,NAME,...]     programs (default: all) with these models, on all cores: step, speed-up over stage 01, efficiency
    pays M,L:NAME,NAME,...          programs and frameworks on all cores: step and speed-up, two columns for each of these models
    pieces MODEL        where a step of the main programs of stages 01 and 03 goes, and the step's bare matrix products
    peers [MODEL]       the frameworks, each beside the fastest stage on as many cores with the same global batch, and beside the
                        fastest over the same transport
    columns             the numbers of a run: the fields of bench/columns.list, what they mean and how they are computed
    ladder              of results/lessons.json: ways to average the gradients of a deep and narrow model, over Gloo
    normal              of each report in results/: the efficiency of 03_ddp_spawn, and its date

Speed-ups and ratios are the report's own, from launches that ran close together in time, with their 95 % intervals. `~`: see marked().
"""

import gzip
import json
import re
import statistics
import sys

from pages import ROOT, rewrite, table_rows

TABLE = re.compile(r"(<!-- table: (\w+)(?: (?!results/)(\S+))?(?: (results/\S+))? -->\n)(.*?)(?=\n\n|\Z)", re.DOTALL)
COLUMNS = {keys.split(",")[0]: (keys.split(","), title if unit == "-" else f"{title}, {unit}", title)
           for keys, title, unit, *_ in table_rows("bench/columns.list")}
PIECES = [key for key in COLUMNS if key.startswith("pieces_ms.")]


def load(path):
    data = path.read_bytes()
    report = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    if "ddp_scaling" not in report:
        return report
    report = report["ddp_scaling"]
    if report["schema_version"] != 3 or report["partial"]:
        raise ValueError(f"schema_version {report['schema_version']}, partial {report['partial']}, expected a whole report of version 3")
    return report


def show(value, interval=None):
    """Three significant digits; `-` for nothing."""
    if interval:
        return f"{show(value)} ({show(interval[0])} to {show(interval[1])})"
    if value is None or isinstance(value, (str, int)):
        return "-" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def table(head, rows):
    if not rows:
        raise ValueError("got no such run, expected some in the report")
    return "\n".join("| " + " | ".join(map(show, row)) + " |" for row in (head, ["---"] * len(head), *rows))


def value_of(run, key):
    for name in key.split("."):
        run = run[name]
    return run


def marked(value, quotient, interval=None):
    """A ratio, as bench shows it: `~` where it is not the quotient that readers compute from the columns. @param quotient None: not known"""
    number, *rest = show(value, interval).split(" ", 1)
    return " ".join([number + ("" if 1 / 1.1 <= (quotient or value) / value <= 1.1 else "~"), *rest])


def speedup_of(run, interval=None):
    alone = "1 launch" if len(run.get("repetitions", ())) == 1 else "-"
    return alone if run["speedup"] is None else marked(run["speedup"], run.get("quotient"), interval)


def shown(run, *columns):
    """The run's numbers in these columns, with their intervals."""
    return [speedup_of(run, run["speedup_ci95"]) if column == "speedup" else show(*(value_of(run, key) for key in COLUMNS[column][0][:2]))
            for column in columns]


def heads(*columns):
    return [COLUMNS[column][1] for column in columns]


def name_of(run):
    return run["stage"] if run["variant"] == "main" else f"{run['stage']}{' ' if run['kind'] == 'peer' else '_'}{run['variant']}"


def ranks_of(run):
    return f"{run['world_size']}" if run["threads"] == 1 else f"{run['world_size']} x {run['threads']} threads"


def transport_of(run):
    return "-" if run["backend"] == "none" else run["backend"]


def runs_of(report, **wanted):
    """Those that were timed and trained as stage 01 does."""
    return [run for run in report["runs"] if run["kind"] != "control" and not run["error"] and run["parity"]["ok"] and run["step_ms"]["median"]
            and all(run[field] == value for field, value in wanted.items())]


def scaling(report, argument):
    (models, _, programs), columns = argument.partition(":"), ("step_ms.median", "samples_per_second", "speedup", "efficiency")
    return table(["model: program", "launcher", "backend", "ranks", *heads(*columns)], [
        [f"{run['model']}: {name_of(run)}", "-" if run["launcher"] == "none" else run["launcher"], transport_of(run), ranks_of(run), *shown(run, *columns)]
        for run in runs_of(report, kind="stage") if run["model"] in models.split(",") and (run["world_size"] > 1 or "01" in run["stage"])
        and (not programs or name_of(run) in programs.split(","))])


def pays(report, argument):
    rows, (models, _, programs) = {}, argument.partition(":")
    for run in runs_of(report):
        if (run["stage"] if run["kind"] == "peer" else name_of(run)) in programs.split(",") and (run["world_size"] * run["threads"] > 1 or "01" in run["stage"]):
            rows.setdefault((name_of(run), ranks_of(run), transport_of(run)), {})[run["model"]] = run
    return table(["program", "ranks", "transport", *(f"{model}: {head}" for model in models.split(",") for head in heads("step_ms.median", "speedup"))], [
        [*key, *(cell for model in models.split(",") for cell in (value_of(found[model], "step_ms.median"), speedup_of(found[model])))]
        for key, found in rows.items() if all(model in found for model in models.split(","))])


def pieces(report, model):
    columns = "step_ms.median", "exposed_comm_ms", "limit_ms"
    return table(["model: program", "ranks", *(COLUMNS[piece][2] for piece in PIECES), *heads("pieces_ms", *columns)], [
        [f"{run['model']}: {name_of(run)}" + (f", {run['backend']}" if run["backend"] != "none" else ""), ranks_of(run), *shown(run, *PIECES),
         sum(value_of(run, piece) or 0 for piece in PIECES), *shown(run, *columns)]
        for run in runs_of(report, kind="stage", variant="main", model=model)
        if run["pieces_ms"]["forward"] is not None and run["launcher"] in ("none", "spawn") and (run["world_size"] > 1 or "01" in run["stage"])])


def peers(report, model):
    named, rows, step = {run["name"]: run for run in runs_of(report)}, [], "step_ms.median"
    for comparison in report["comparisons"]:
        if comparison["kind"] == "peer" and comparison["b"] in named and model in (None, named[comparison["b"]]["model"]):
            ours, peer = named[comparison["a"]], named[comparison["b"]]
            rows.append([f"{peer['model']}: {name_of(peer)}", ranks_of(peer), transport_of(peer), *shown(peer, step),
                         f"{name_of(ours)}, {ranks_of(ours)}, {transport_of(ours)}", *shown(ours, step),
                         marked(comparison["ratio"], value_of(peer, step) / value_of(ours, step), comparison["ci95"])])
    return table(["framework", "ranks", "transport", *heads(step), "ours", *heads(step), "our speed / its"], rows)


def columns(_report, _argument):
    return table(["number", "unit", "meaning", "formula"], [[f"`{keys.replace(',', '`, `')}`", unit, meaning, formula if formula == "-" else f"`{formula}`"]
                                                            for keys, _, unit, *_, meaning, formula in table_rows("bench/columns.list")])


def rung_of(row):
    """Cells of a rung of times.json: messages, step with the lowest and highest, and how many times the wrapper's it is."""
    step_ms, middle = row["step_ms"], statistics.median(row["step_ms"])
    return [row["messages"], show(middle, (min(step_ms), max(step_ms))), show(middle / statistics.median(row["wrapper_step_ms"]))]


def ladder(lessons, _argument):
    return table(["gradients travel as", "when", "exercise", "messages", "step, ms (lowest to highest)", "times the wrapper"], [
        [way, when, rung if rung[0] == "0" else "-", *rung_of(lessons["ladder"][rung])] for rung, way, when in (
            ("03", "a message per parameter", "after backward"), ("03b", "one flat message", "after backward"),
            ("08", "a hook per parameter", "during backward"), ("09", "buckets of 40 KB", "during backward"),
            ("wrapper", "`DistributedDataParallel`", "at the end of backward"), ("compiled", "a compiled step", "after backward"))])


def normal(_report, _argument):
    rows, models = [], ("M", "L")
    for file in sorted((ROOT / "results").glob("*.json.gz")):
        report, found = load(file), {}
        for run in runs_of(report, stage="03_ddp_spawn", variant="main"):
            if run["world_size"] > 1 and run["model"] in models:
                found.setdefault((run["world_size"], transport_of(run)), {})[run["model"]] = run
        for (ranks, transport), runs in found.items():
            rows.append([", ".join([report["machine"]["cpu_model"], f"{report['machine']['cores']} cores", *report["machine"]["gpus"]]), ranks, transport, *(
                show(run["efficiency"], [end / ranks for end in run["speedup_ci95"] or []]) if (run := runs.get(model)) else "-" for model in models),
                next(iter(runs.values()))["repetitions"][0]["started"][:10], report["software"]["libtorch"]])
    return table(["machine", "ranks", "transport", *(f"{model}: efficiency" for model in models), "date", "LibTorch"], rows)


KINDS = {kind.__name__: kind for kind in (scaling, pays, pieces, peers, columns, ladder, normal)}


def update_page(page, text):
    """What its text should be, and complaints."""
    complaints = []

    def filled(match):
        marker, kind, argument, file, _ = match.groups()
        try:
            return marker + KINDS[kind](load(ROOT / file) if file else None, argument)
        except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            complaints.append(f"{page.relative_to(ROOT)}: {marker.strip()}: {error!r}")
            return match[0]

    return TABLE.sub(filled, text), complaints


def main(arguments=None):
    return rewrite(update_page, "tools/tables.py", __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
