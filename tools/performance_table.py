#!/usr/bin/env python3
"""The tables of docs/performance.md, from a report of bench and sweeps of bench_micro, each as it is or compressed (.gz);
with --stages its first one, from a report of the stages, with --sizes the numbers of the README's table of stages, with --beside that of a
stage's README, some programs side by side, with --peers those of bench/peers/README.md, from a report with peers, with --speedup that of
docs/speedup.md, and with --sentences what bench concluded, as a list.

A ratio of step times is the report's own, the median of paired runs of one session with its interval (95 %); an efficiency is the inverse of
one. Start-up and shares are quotients of medians. The last lines say how far equal commands were apart in that session.
"""

import argparse
import gzip
import json
import pathlib
import re

from stage_diffs import DIFFS, changed_code_lines, code_lines

MODELS = ("T", "S", "M", "L")
SIZES = ((4096, "4 KiB"), (1 << 20, "1 MiB"), (4 << 20, "4 MiB"), (25 << 20, "25 MiB"))


class Report:
    def __init__(self, document):
        scaling = document["ddp_scaling"]
        self.sentences = [(entry["code"], entry["text"]) for entry in scaling["conclusions"]]
        self.runs = [run for run in scaling["runs"] if run["kind"] in ("stage", "peer") and not run["error"]]
        self.controls = [(entry["a"], (entry["ratio_median"], *(entry["ci95"] or ()))) for entry in scaling["comparisons"]
                         if entry["kind"] == "control" and entry["ratio_median"] is not None]
        self.ratios = {(entry["a"], entry["b"]): (entry["ratio_median"], *(entry["ci95"] or ())) for entry in scaling["comparisons"]
                       if entry["ratio_median"] is not None}

    def best(self, model, **wanted):
        """The fastest run with these fields."""
        found = [run for run in self.runs
                 if run["model"] == model and all(run[field] == value for field, value in wanted.items())]
        return min(found, key=lambda run: run["step_ms"]["median"], default=None)

    def ratio(self, a, b):
        """Of their steps, with the ends of its interval; the report has it of one of the two over the other."""
        if a is None or b is None:
            return None
        inverse = self.ratios.get((b["name"], a["name"]))
        return self.ratios.get((a["name"], b["name"]), inverse and tuple(1 / inverse[end] for end in (0, 2, 1)[:len(inverse)]))


def load(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def show(value):
    if isinstance(value, tuple):
        median, *ends = map(show, value)  # no interval of fewer than three pairs
        return f"{median} ({' to '.join(ends)})" if ends else median
    if value is None or isinstance(value, int):
        return "-" if value is None else str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.095 else f"{value:#.2g}"


def tables_of(report):
    ours = {"kind": "stage", "stage": "03_ddp_spawn", "world_size": 2}
    python = {"kind": "peer", "stage": "pytorch"}

    def every(value):
        return [value(model) for model in MODELS]

    def against_python(**wanted):
        return every(lambda model: report.ratio(report.best(model, **ours, **wanted),
                                                report.best(model, **python, world_size=2)))

    def against_reducer(backend):
        return every(lambda model: report.ratio(
            report.best(model, **ours, speedup="none", backend=backend, launcher="spawn", variant="main"),
            report.best(model, kind="peer", stage="c10d", backend=backend, world_size=2)))

    def alone(speedup):
        return every(lambda model: report.ratio(report.best(model, kind="stage", stage="01_single_gpu", speedup=speedup),
                                                report.best(model, **python, world_size=1)))

    def efficiency(speedup):
        def value(model):
            ratio = report.ratio(report.best(model, **ours, speedup=speedup),
                                 report.best(model, kind="stage", stage="01_single_gpu", speedup=speedup))
            return ratio and (1 / ratio[0], 1 / ratio[2], 1 / ratio[1])
        return every(value)

    def exposed(speedup):
        def share(model):
            run = report.best(model, **ours, speedup=speedup)
            return run and run["phases_ms"]["exposed_comm"] / run["step_ms"]["median"]
        return every(share)

    def startup(model):
        run, peer = report.best(model, **ours, speedup="none"), report.best(model, **python, world_size=2)
        return run["startup_ms"] / peer["startup_ms"] if run and peer else None

    return {
        "ratio of step times, below 1: ours is faster": [
            ("stage 03 / best Python DDP, two ranks", against_python(speedup="none")),
            ("the same with `--speedup fused` in C++", against_python(speedup="fused")),
            ("both over Gloo, two ranks", against_python(speedup="none", backend="gloo")),
            ("stage 01 / Python, one process", alone("none")),
            ("the same with `--speedup fused` in C++", alone("fused")),
            ("our DDP / `c10d::Reducer`, over Gloo", against_reducer("gloo")),
            ("our DDP / `c10d::Reducer`, over shm", against_reducer("shm")),
            ("command to first step / that of Python DDP", every(startup))],
        "our own figures": [
            ("weak-scaling efficiency of two ranks, 1 is perfect", efficiency("none")),
            ("the same with `--speedup fused`", efficiency("fused")),
            ("exposed communication (what backward does not hide), share of the step", exposed("none")),
            ("the same with `--speedup fused`", exposed("fused"))],
    }


def print_peers(report, model="S"):
    """Each peer at its best, for the first page; then what each program takes, on CPUs and, the same rows, on GPUs."""
    ours = ("01_single_gpu", "03_ddp_spawn", "04_ddp_launcher")
    measured = [run for run in report.runs if run["model"] == model and run["speedup"] == "none" and run["world_size"] <= 2
                and (run["kind"] == "peer" or run["stage"] in ours and run["variant"] == "main")]

    def us(ranks, device):
        return report.best(model, kind="stage", variant="main", speedup="none", world_size=ranks, device=device,
                           stage="01_single_gpu" if ranks == 1 else "03_ddp_spawn")

    def facts(run):
        ratio = report.ratio(us(run["world_size"], run["device"]), run) if run["kind"] == "peer" else None
        return [run["lines_of_code"], run["step_ms"]["median"], ratio, run["job_peak_rss_mib"], run["startup_ms"] / 1e3]

    def name_of(run):
        return run["stage"] + (f" {run['variant']}" if run["variant"] != "main" else "")

    head = ["lines", "step, ms", "ours / it", "memory, MiB", "start-up, s"]
    stages = dict.fromkeys(run["stage"] for run in measured if run["kind"] == "peer")
    best = [us(2, "cpu"), *(report.best(model, kind="peer", stage=stage, world_size=2, device="cpu") for stage in stages)]
    print_table([f"{model}, two ranks on CPUs", *head], [(name_of(run), facts(run)) for run in best if run])
    names = dict.fromkeys((run["world_size"], run["stage"], name_of(run), run["variant"]) for run in measured)
    for device, devices in (("cpu", "CPU"), ("cuda", "GPU")):
        def row(ranks, stage, name, variant):
            run = report.best(model, stage=stage, variant=variant, world_size=ranks, device=device, speedup="none")
            return name, [ranks, *(facts(run) if run else [None] * len(head))]

        print()
        if any(run["device"] == device for run in measured):
            print_table([f"{model} on {devices}s", "ranks", *head],
                        [row(*name) for name in sorted(names, key=lambda name: (name[0], name[1] not in ours))])
        else:
            print(f"On {devices}s nothing has been measured yet.")


def print_stages(report):
    """The step of each program over stage 01's, where it does as many times the work in a step as it has ranks."""
    measured = [run for run in report.runs if run["kind"] == "stage" and run["stage"] != "01_single_gpu" and run["threads"] == 1]
    ranks = max(run["world_size"] for run in measured)
    columns = dict.fromkeys((run["stage"], run["variant"], run["launcher"], run["world_size"]) for run in measured
                            if run["world_size"] == ranks or (run["stage"], run["variant"], run["world_size"]) == ("03_ddp_spawn", "main", 1))

    def row(model):
        baseline = report.best(model, stage="01_single_gpu", threads=1)
        return f"{model} ({show(baseline['step_ms']['median'])} ms)", [
            report.ratio(report.best(model, stage=stage, variant=variant, launcher=launcher, world_size=size), baseline)
            for stage, variant, launcher, size in columns]

    names = [stage.replace("_", " ", 1) + ("" if variant == "main" else f" {variant}") + ("" if launcher in ("none", "spawn") else f", {launcher}")
             + f", {size}" for stage, variant, launcher, size in columns]
    print_table(["step over stage 01's; ranks", *names], [row(model) for model in dict.fromkeys(run["model"] for run in measured)])


def print_beside(report, programs, models=("T", "M")):
    """Steps and speeds of these programs, each NAME/RANKS; a peer's name stands for the fastest of its settings.

    @throws ValueError naming the program that the report does not have
    """
    def run_of(model, name, ranks):
        found = [run for run in report.runs if run["model"] == model and str(run["world_size"]) == ranks and run["threads"] == 1
                 and run["speedup"] == "none" and (run["stage"] + ("" if run["variant"] == "main" else f"_{run['variant']}") == name
                                                   or run["kind"] == "peer" and run["stage"] == name)]
        if not found:
            raise ValueError(f"--beside: got {name}{ranks and '/'}{ranks}, expected NAME/RANKS of a run of model {model} in the report")
        return min(found, key=lambda run: run["step_ms"]["median"])

    rows = []
    for model in models:
        baseline = run_of(model, "01_single_gpu", "1")
        for program in programs:
            name, _, ranks = program.partition("/")
            run = run_of(model, name, ranks)
            rows.append((f"{model}: {name.replace('_', ' ', 1)}, {run['world_size']}",
                         [run["global_batch"], run["step_ms"]["median"], run["samples_per_second"], 1 if run is baseline else report.ratio(run, baseline)]))
    print_table(["model: program, processes or replicas", "samples in a step", "step, ms", "samples/s", "step over stage 01's"], rows)


def print_speedup(report):
    """Quotients of medians, but for the ratio of the two fused runs, which is the report's own."""
    def step_ms(model, speedup, **wanted):
        return report.best(model, kind="stage", speedup=speedup, variant="main", **wanted)["step_ms"]["median"]

    one, two = {"stage": "01_single_gpu"}, {"stage": "03_ddp_spawn", "world_size": 2, "backend": "shm"}
    fused_alone = {model: report.best(model, kind="stage", speedup="fused", **one) for model in MODELS}
    print_table(["", *MODELS], [
        ("fused / none, one process (stage 01)", [step_ms(model, "fused", **one) / step_ms(model, "none", **one) for model in MODELS]),
        ("fused / none, two ranks over shared memory (stage 03)",
         [step_ms(model, "fused", **two) / step_ms(model, "none", **two) for model in MODELS]),
        ("fused, two ranks / fused, one process",
         [report.ratio(report.best(model, kind="stage", speedup="fused", **two), fused_alone[model]) for model in MODELS]),
        ("step of fused, one process / least that the machine's measured limits allow",
         [run["step_ms"]["median"] / run["floor_ms"] for run in fused_alone.values()])])


def print_sizes(report, model="M"):
    """Of each stage the lines of its source, those changed against the one before, and the step on as many ranks as the report has at most."""
    ranks = max(run["world_size"] for run in report.runs)
    changes = [("01_single_gpu/main.cpp", None), *((after, before) for after, before, _ in DIFFS if after.endswith("/main.cpp"))]

    def row(source, before):
        stage = source.split("/")[0]
        run = report.best(model, stage=stage, variant="main", speedup="none", world_size=ranks if before else 1, threads=1)
        return f"[{stage}]({stage})", [code_lines(source), changed_code_lines(before, source) if before else None, run and run["step_ms"]["median"]]

    print_table(["stage", "lines of code", "changed", f"step of {model}, ms"], [row(*change) for change in changes])


def print_sentences(report, pattern):
    """What bench concluded, word for word, where `<code> <sentence>` has the pattern. @throws ValueError if nowhere"""
    found = [sentence for code, sentence in report.sentences if re.search(pattern, f"{code} {sentence}")]
    if not found:
        raise ValueError(f"--sentences: got {pattern!r}, expected a pattern that a sentence of the report has")
    print("\n".join(f"* {sentence}" for sentence in found))


def print_table(head, rows):
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name, values in rows:
        print(f"| {name} | {' | '.join(show(value) for value in values)} |")


def print_all(report, sweeps):
    """The tables of docs/performance.md."""
    for table, (what, rows) in enumerate(tables_of(report).items()):
        print("\n" * min(table, 1), end="")
        print_table([what, *MODELS], rows)
    times = {}
    for sweep in sweeps:
        for entry in load(sweep)["benchmarks"]:
            suite, backend, *_ = entry["name"].split("/")
            if suite == "all_reduce":
                times[backend, int(entry["bytes"])] = entry["time_us_median"]
    others = sorted({backend for backend, _ in times} - {"shm"})
    if others:
        print()
        print_table(["all-reduce alone", *(name for _, name in SIZES)], [
            (f"shm / {other}", [times["shm", size] / times[other, size] if {("shm", size), (other, size)} <= times.keys() else None
                                for size, _ in SIZES]) for other in others])
    for part, names in (("/gloo/", "two ranks over Gloo"), ("/shm/", "two ranks over shm"), ("/01_single_gpu/", "one process")):
        apart = [(name.split("/")[0], ratio) for name, ratio in report.controls if part in name]
        if apart:
            print(f"\nEqual commands, {names}: {', '.join(f'{model} {show(ratio)}' for model, ratio in sorted(apart, key=lambda one: MODELS.index(one[0])))}.")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path, metavar="REPORT.json")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--stages", action="store_true", help="the stages of the report, over stage 01")
    what.add_argument("--sizes", action="store_true", help="lines, changed lines and the step of each stage")
    what.add_argument("--beside", type=lambda text: text.split(","), metavar="NAME/RANKS,...", help="these programs side by side")
    what.add_argument("--peers", action="store_true", help="what each program takes, beside the peers of the report")
    what.add_argument("--speedup", action="store_true", help="--speedup fused over none, from a report with both")
    what.add_argument("--sentences", metavar="REGEX", help="the report's conclusions in whose code and words that is found")
    parser.add_argument("sweeps", type=pathlib.Path, nargs="*", metavar="SWEEP.json")
    options = parser.parse_args(arguments)
    report = Report(load(options.report))
    try:
        if options.stages:
            print_stages(report)
        elif options.sizes:
            print_sizes(report)
        elif options.beside:
            print_beside(report, options.beside)
        elif options.peers:
            print_peers(report)
        elif options.speedup:
            print_speedup(report)
        elif options.sentences:
            print_sentences(report, options.sentences)
        else:
            print_all(report, options.sweeps)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
