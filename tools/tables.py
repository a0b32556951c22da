#!/usr/bin/env -S PYTHONSAFEPATH= python3
"""Fills the tables on the pages from the reports of bench that results/ keeps.

    tools/tables.py           rewrites the tables
    tools/tables.py --check   fails where a table is not what its report gives

A table stands below a marker `<!-- table: KIND [ARGUMENT] results/FILE -->`, up to the next blank line. KIND:

    scaling T,M[:NAME,NAME,...]     programs (default: all) with these models, on all cores: step, speed-up over stage 01, efficiency
    pays M,L:NAME,NAME,...          stages and frameworks on all cores: step and speed-up, two columns for each of these models
    pieces MODEL        where a step of the stages' main programs goes, and the step's bare matrix products
    peers [MODEL]       the frameworks, each beside the fastest stage on as many cores with the same global batch, and beside the
                        fastest over the same transport
    origin              where, from which commit and by which command it was measured

Speed-ups and ratios are the report's own, from launches that ran close together in time, with their 95 % intervals.
"""

import gzip
import json
import re
import sys
import textwrap

from pages import ROOT, rewrite

TABLE = re.compile(r"(<!-- table: (\w+)(?: (\S+))? (results/\S+) -->\n)(.*?)(?=\n\n|\Z)", re.DOTALL)
PIECES = ("data", "forward", "backward", "update", "all_reduce")


def load(path):
    data = path.read_bytes()
    report = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["ddp_scaling"]
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
    models, _, programs = argument.partition(":")
    return table(["model: program", "launcher", "backend", "ranks", "step, ms", "samples/s", "speed-up", "efficiency"], [
        [f"{run['model']}: {name_of(run)}", "-" if run["launcher"] == "none" else run["launcher"], transport_of(run), ranks_of(run),
         run["step_ms"]["median"], run["samples_per_second"], show(run["speedup"], run["speedup_ci95"]), run["efficiency"]]
        for run in runs_of(report, kind="stage") if run["model"] in models.split(",") and (run["world_size"] > 1 or "01" in run["stage"])
        and (not programs or name_of(run) in programs.split(","))])


def pays(report, argument):
    rows, (models, _, programs) = {}, argument.partition(":")
    for run in (run for run in runs_of(report) if run["stage"] in programs.split(",")):
        rows.setdefault((name_of(run), ranks_of(run), transport_of(run)), {})[run["model"]] = run
    columns = [(model, field) for model in models.split(",") for field in ("step, ms", "speed-up")]
    return table(["program", "ranks", "transport", *(f"{model}: {field}" for model, field in columns)], [
        [*key, *((run["step_ms"]["median"] if field == "step, ms" else run["speedup"]) for model, field in columns for run in [found[model]])]
        for key, found in rows.items() if all(model in found for model in models.split(","))])


def pieces(report, model):
    return table(["model: program", "ranks", *(name.replace("_", "-") for name in PIECES), "sum, ms", "step, ms", "exposed, ms", "limit, ms"], [
        [f"{run['model']}: {name_of(run)}" + (f", {run['backend']}" if run["backend"] != "none" else ""), ranks_of(run), *(run["pieces_ms"][name] for name in PIECES),
         sum(run["pieces_ms"][name] or 0 for name in PIECES), run["step_ms"]["median"],
         show(run["exposed_comm_ms"], run["exposed_comm_ci95_ms"]), run["limit_ms"]]
        for run in runs_of(report, kind="stage", variant="main", model=model)
        if run["pieces_ms"]["forward"] is not None and (run["world_size"] > 1 or "01" in run["stage"])])


def peers(report, model):
    named, rows = {run["name"]: run for run in runs_of(report)}, []
    for comparison in report["comparisons"]:
        if comparison["kind"] == "peer" and comparison["b"] in named and model in (None, named[comparison["b"]]["model"]):
            ours, peer = named[comparison["a"]], named[comparison["b"]]
            rows.append([f"{peer['model']}: {name_of(peer)}", ranks_of(peer), transport_of(peer), peer["step_ms"]["median"], peer["lines_of_code"],
                         peer["peak_rss_mib"], f"{name_of(ours)}, {ranks_of(ours)}, {transport_of(ours)}", ours["step_ms"]["median"],
                         show(comparison["ratio"], comparison["ci95"])])
    return table(["framework", "ranks", "transport", "step, ms", "lines", "memory, MiB", "ours", "step, ms", "our speed / its"], rows)


def origin(report, _):
    machine, software, settings = report["machine"], report["software"], report["settings"]
    return textwrap.fill(
        f"{machine['cpu_model']}, {machine['cores']} cores, LibTorch {software['libtorch']}, commit {software['git_commit']}, "
        f"up to {settings['repetitions']} launches of each program: `{settings['command']}`", 100, break_long_words=False, break_on_hyphens=False)


def update_page(page, text):
    """What its text should be, and complaints."""
    complaints = []

    def filled(match):
        marker, kind, argument, file, _ = match.groups()
        try:
            return marker + {"scaling": scaling, "pays": pays, "pieces": pieces, "peers": peers, "origin": origin}[kind](load(ROOT / file), argument)
        except (OSError, KeyError, ValueError, RecursionError) as error:
            complaints.append(f"{page.relative_to(ROOT)}: {marker.strip()}: {error!r}")
            return match[0]

    return TABLE.sub(filled, text), complaints


def main(arguments=None):
    return rewrite(update_page, "tools/tables.py", __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
