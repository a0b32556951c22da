#!/usr/bin/env python3
"""Draws the pictures of the pages, each for a light and a dark page: docs/NAME_light.svg and docs/NAME_dark.svg.

stages          the README's: the five stages, the changed lines between them, and the speed-up of each
data_parallel   what stage 02 does once and in every step
all_reduce      the same of stage 03
nodes           stage 05's ranks, local ranks and devices
whose_samples   which samples one process reads, and which each of two ranks

Changed lines are those that stage_diffs.py counts; speed-ups are `ddp_scaling.runs[].relative_speedup` of a report by bench (unless another is given,
that in results/ named below), with their intervals. A report with a run that fails parity or has no interval, or that was broken off, is refused. With
--check, writes nothing and fails if a picture is not what would be drawn.
"""

import argparse
import math
import pathlib
import random
import sys

from drawing import DARK, LIGHT, MONO, WIDTH, Drawing
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
BARS = ("blue", "orange")
MOST_MODELS = len(BARS)

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


def stages(document, colours):
    """The README's picture."""
    world_size, per_model = speedups(document)
    machine, commit = document["ddp_scaling"]["machine"], str(document["ddp_scaling"]["software"]["git_commit"])
    dirty = "-dirty" if commit.endswith("-dirty") else ""
    lines_between = [changed_code_lines(f"{before}/main.cpp", f"{after}/main.cpp")
                     for (before, _), (after, _) in zip(STAGES, STAGES[1:])]
    largest = max([world_size, *(value[2] for values in per_model.values() for value in values if value)])
    scale = (PLOT_WIDTH - LABEL_WIDTH) / largest
    bottom = TOP + ROW * (len(STAGES) - 1) + BOX_HEIGHT
    height = bottom + 26 + 22 * len(per_model) + 80
    middle = BOX_LEFT + BOX_WIDTH / 2
    drawing = Drawing("Five stages, the changed lines between them, and the speed-up of each over stage 01", height, colours)
    drawing.text(BOX_LEFT, 20, "changed lines, − and +", weight="600")
    drawing.text(PLOT_LEFT, 20, f"speed-up over stage 01, {world_size} ranks", weight="600")
    for at, label in ((1, "1"), (world_size, f"{world_size} is ideal")):
        x = PLOT_LEFT + scale * at
        drawing.path(f"M{x:g} {TOP} V{bottom}", width=1, dashed=at > 1)
        drawing.text(x, TOP - 6, label, "muted", 13, anchor="middle")
    for row, (stage, what) in enumerate(STAGES):
        y = TOP + ROW * row
        drawing.box(BOX_LEFT, y, BOX_WIDTH, BOX_HEIGHT)
        drawing.text(middle, y + 21, stage, size=16, family=MONO, anchor="middle", weight="600")
        drawing.text(middle, y + 40, what, "muted", 14, anchor="middle")
        if row:
            drawing.arrow([(middle, y - ROW + BOX_HEIGHT + 2), (middle, y - 3)])
            drawing.text(middle + 14, y - 9, f"{lines_between[row - 1]} lines")
        bars_height = len(per_model) * (BAR_HEIGHT + BAR_GAP) - BAR_GAP
        for index, values in enumerate(per_model.values()):
            bar_y = y + (BOX_HEIGHT - bars_height) / 2 + index * (BAR_HEIGHT + BAR_GAP)
            value, low, high = values[row] or (0, 0, 0)
            middle_y = bar_y + BAR_HEIGHT / 2
            drawing.box(PLOT_LEFT, bar_y, round(scale * value, 1), BAR_HEIGHT, BARS[index], "none", radius=0)
            if low < high:
                ends = [PLOT_LEFT + round(scale * end, 1) for end in (low, high)]
                drawing.path(f"M{ends[0]} {middle_y:g} H{ends[1]} M{ends[0]} {middle_y - 4:g} v8 M{ends[1]} {middle_y - 4:g} v8", "text")
            # Where neither the interval nor the bar's end is.
            inside = scale * low > LABEL_WIDTH
            drawing.text(PLOT_LEFT + 6 + (0 if inside else round(scale * high, 1)), bar_y + BAR_HEIGHT - 3.5,
                         f"{value:.2f}" if value else "not measured", "on_bar" if inside else "text")
    drawing.path(f"M{PLOT_LEFT} {TOP} V{bottom}", width=1)
    for index, model in enumerate(per_model):
        y = bottom + 28 + 22 * index
        drawing.box(PLOT_LEFT, y - 12, 14, 14, BARS[index], "none", radius=0)
        drawing.text(PLOT_LEFT + 22, y, MODELS.get(model, model), size=14)
    least, most = control_range(document)
    for from_bottom, line in ((62, "Thin lines: 95 % intervals."), (44, f"Equal commands took {least:.2f} to {most:.2f} times as long as each other."),
                              (26, f"Measured by bench on {machine['cpu_model']}, {machine['cores']} cores, "
                                   f"{document['context']['date'][:10]}, commit {commit[:12]}{dirty}."),
                              (8, f"results/{name_of(document)}.json.gz")):
        drawing.text(BOX_LEFT, height - from_bottom, line, "muted", 13)
    return str(drawing)


# The pictures of 02 and 03: at the left what is called, then a column for each of three devices.
COLUMNS = [160 + 134 * index for index in range(3)]
COLUMN, LINE, PITCH, SQUARE = 116, 30, 54, 20  # widths and heights; the pitch is that of rows
ONCE, FIRST_ROW = 92, 166  # the tops of their rows


def middle_of(column):
    return COLUMNS[column] + COLUMN / 2


class Steps(Drawing):
    """What happens once, and below it what happens in every step, row by row."""

    def __init__(self, title, stage, moral, processes, rows, colours):
        self.bottom = FIRST_ROW + (rows - 1) * PITCH + LINE + 12
        super().__init__(title, self.bottom + 4, colours)
        self.text(4, 20, stage, size=16, family=MONO, weight="600")
        self.text(WIDTH - 4, 20, moral, "muted", 14, anchor="end")
        for label, first, last in processes:
            self.process(label, first, last)
        self.text(20, ONCE - 8, "once", size=14, weight="600")
        self.path(f"M4 {FIRST_ROW - 32} H{WIDTH - 4}", width=1, dashed=True)
        self.text(20, FIRST_ROW - 10, "every step", size=14, weight="600")
        top, bottom = FIRST_ROW - 15, self.bottom - 12 - LINE / 2
        self.arrow([(14, bottom), (6, bottom), (6, top), (16, top)])
        self.y = ONCE

    def __str__(self):
        if self.y + LINE + 12 != self.bottom:
            raise AssertionError(f"another number of rows than was said: the last one is at {self.y}, the bottom at {self.bottom}")
        return super().__str__()

    def process(self, label, first, last):
        """With the devices of these columns."""
        self.box(COLUMNS[first] - 5, 34, COLUMNS[last] + COLUMN - COLUMNS[first] + 10, self.bottom - 34, "box", "muted")
        self.text((middle_of(first) + middle_of(last)) / 2, 52, label, size=14, anchor="middle", weight="600")
        for column in range(first, last + 1):
            self.text(middle_of(column), 71, f"device {column}", "muted", 14, anchor="middle")

    def called(self, name, result=""):
        """In this row."""
        if name:
            self.text(20, self.y + (12 if result else LINE / 2 + 5), name, size=13, family=MONO)
        if result:
            self.text(20, self.y + (28 if name else LINE / 2 + 5), result, "muted", 13)

    def row(self, name="", result=""):
        """The next one."""
        self.y = FIRST_ROW if self.y == ONCE else self.y + PITCH
        self.called(name, result)

    def label(self, column, label, colour, full=False):
        self.label_box(COLUMNS[column], self.y, COLUMN, LINE, label, colour, full)

    def note(self, column, note):
        self.text(middle_of(column), self.y + LINE / 2 + 5, note, "muted", 14, anchor="middle")

    def samples(self, column, numbers):
        for index, number in enumerate(numbers):
            x = middle_of(column) + (index - len(numbers) / 2) * SQUARE
            self.box(x + 1, self.y + (LINE - SQUARE) / 2, SQUARE - 2, SQUARE - 2, "blue", "none", radius=2)
            self.text(x + SQUARE / 2, self.y + LINE / 2 + 5, str(number), "on_bar", 13, anchor="middle")

    def values(self, column, values, colour):
        self.box(COLUMNS[column], self.y, COLUMN, LINE, colour, colour, 0.15, 4)
        self.bars(COLUMNS[column] + 15, self.y + 2, COLUMN - 30, LINE - 4, values, colour)

    def flow(self, sources, targets, colour):
        """From the row above to this one."""
        top, end = self.y - PITCH + LINE + 1, self.y - 2
        bend = (top + end) / 2
        for source in sources:
            for target in targets:
                x, to = middle_of(source), middle_of(target)
                self.arrow([(x, top), (x, end)] if x == to else [(x, top), (x, bend), (to, bend), (to, end)], colour)

    def hand_over(self, source, targets, colour):
        """From one column of this row to others."""
        bend = self.y - 11
        for target in targets:
            self.arrow([(middle_of(source), self.y), (middle_of(source), bend), (middle_of(target), bend), (middle_of(target), self.y - 2)], colour)


def data_parallel(colours):
    """Stage 02."""
    every, first, others = range(3), 0, (1, 2)
    drawing = Steps("Stage 02: one process, three devices. In every step device 0 scatters the batch and copies the weights, all run forward, "
                    "and device 0 gathers the outputs; the loss, the sum of the gradients and the update are on device 0 alone",
                    "02_data_parallel", "device 0 does more than the others", [("one process", 0, 2)], 9, colours)

    def on_the_first(label, colour):
        drawing.label(first, label, colour, full=True)
        for device in others:
            drawing.note(device, "waits")

    drawing.label(first, "weights", "orange", full=True)

    drawing.row("loader", "the batch")
    drawing.samples(first, range(6))
    drawing.row("scatter")
    drawing.flow([first], every, "blue")
    for device in every:
        drawing.samples(device, (2 * device, 2 * device + 1))
    drawing.row("replicate")
    drawing.label(first, "weights", "orange", full=True)
    drawing.hand_over(first, others, "orange")
    for device in others:
        drawing.label(device, "copy", "orange")
    drawing.row("parallel_apply")
    for device in every:
        drawing.flow([device], [device], "muted")
        drawing.label(device, "forward", "blue")
    drawing.row("gather")
    drawing.flow(every, [first], "blue")
    on_the_first("all outputs", "blue")
    drawing.row("ddp::loss")
    drawing.flow([first], [first], "blue")
    on_the_first("loss", "blue")
    drawing.row("loss.backward()")
    drawing.flow([first], every, "blue")
    for device in every:
        drawing.label(device, "backward", "blue")
    drawing.row()
    drawing.flow(every, [first], "blue")
    on_the_first("Σ gradients", "blue")
    drawing.row("optimizer.step()")
    drawing.flow([first], [first], "blue")
    on_the_first("new weights", "orange")
    return str(drawing)


# What the ranks of the picture have: rank 0's weights, each rank's gradients.
WEIGHTS = (0.9, -0.5, 0.6, 0.6, -0.8)
GRADIENTS = ((0.9, -0.2, -0.8, 0.1, 0.9), (0.2, -0.9, -0.1, 0.7, 0.4), (0.7, -0.7, 0.3, 0.4, -0.4))
LEARNING_RATE = 0.6


def all_reduce(colours):
    """Stage 03."""
    ranks = range(len(GRADIENTS))
    mean = [sum(values) / len(values) for values in zip(*GRADIENTS)]
    updated = [weight - LEARNING_RATE * gradient for weight, gradient in zip(WEIGHTS, mean)]
    drawing = Steps("Stage 03: three ranks, each a process with a device, a copy of the weights and samples of its own. Their gradients differ; the "
                    "all-reduce gives every rank the mean; all make the same update, so the copies stay equal",
                    "03_ddp_spawn", "one process per device; all do the same", [(f"rank {rank}", rank, rank) for rank in ranks], 6, colours)
    drawing.called("broadcast", "equal weights")
    drawing.hand_over(0, (1, 2), "orange")
    for rank in ranks:
        drawing.values(rank, WEIGHTS, "orange")

    drawing.row("sampler", "own samples")
    for rank in ranks:
        drawing.samples(rank, range(6)[rank::len(GRADIENTS)])
    drawing.row("forward", "own loss")
    for rank in ranks:
        drawing.flow([rank], [rank], "blue")
        drawing.label(rank, "loss", "blue")
    drawing.row("loss.backward()", "own gradients")
    for rank in ranks:
        drawing.flow([rank], [rank], "blue")
        drawing.values(rank, GRADIENTS[rank], "blue")
    drawing.row("all_reduce")
    drawing.label_box(COLUMNS[0], drawing.y, COLUMNS[-1] + COLUMN - COLUMNS[0], LINE, "mean over the ranks", "blue", full=True)
    for rank in ranks:
        drawing.flow([rank], [rank], "blue")
    drawing.row("", "equal gradients")
    for rank in ranks:
        drawing.flow([rank], [rank], "blue")
        drawing.values(rank, mean, "blue")
    drawing.row("optimizer.step()", "equal weights")
    for rank in ranks:
        drawing.flow([rank], [rank], "blue")
        drawing.values(rank, updated, "orange")
    return str(drawing)


NODES, GPUS_PER_NODE = 2, 8
SHOWN_RANK = 11  # 05's example


def nodes(colours):
    """Stage 05."""
    left, cell, node_height, between = 88, 58, 160, 58
    shown_node, shown_local_rank = divmod(SHOWN_RANK, GPUS_PER_NODE)
    marked = {0: ("blue", "rank 0 alone saves and reports"),
              SHOWN_RANK: ("orange", f"rank {SHOWN_RANK} = node {shown_node} × {GPUS_PER_NODE} + local rank {shown_local_rank}")}
    drawing = Drawing(f"Stage 05: two nodes of eight GPUs, sixteen ranks. The rank counts over all nodes, the local rank within each node, and picks the "
                      f"GPU there: rank {SHOWN_RANK} has local rank {shown_local_rank}, so GPU {shown_local_rank} of node {shown_node}. Rank 0 alone "
                      "saves and reports", 36 + NODES * node_height + (NODES - 1) * between + 2, colours)
    drawing.text(4, 20, "05_multinode", size=16, family=MONO, weight="600")
    drawing.text(WIDTH - 4, 20, "the local rank picks the device", "muted", 14, anchor="end")
    for node in range(NODES):
        top = 36 + node * (node_height + between)
        if node:
            drawing.path(f"M{WIDTH / 2:g} {top - between} V{top}", width=3)
            drawing.text(WIDTH / 2 + 14, top - between / 2 + 5, "between nodes: the network", size=14)
        drawing.box(2, top, WIDTH - 4, node_height, "box", "muted")
        drawing.text(12, top + 22, f"node {node}", size=15, weight="600")
        for y, label in ((56, "rank"), (82, "local rank"), (109, "device")):
            drawing.text(12, top + y, label, size=14)
        wire = top + 134
        for local_rank in range(GPUS_PER_NODE):
            rank, x = node * GPUS_PER_NODE + local_rank, left + cell * local_rank
            colour, why = marked.get(rank, ("muted", ""))
            drawing.path(f"M{x + cell / 2 - 2:g} {top + 118} V{wire}")
            if why:
                drawing.box(x, top + 32, cell - 4, 91, colour, colour, 0.15)
                drawing.text(x + 1, top + 24, why, colour, 14)
            drawing.text(x + cell / 2 - 2, top + 56, str(rank), size=17, anchor="middle", weight="600")
            drawing.text(x + cell / 2 - 2, top + 82, str(local_rank), size=15, anchor="middle")
            drawing.label_box(x + 2, top + 92, cell - 8, 26, f"GPU {local_rank}", colour, full=bool(why))
        drawing.path(f"M{left + cell / 2 - 3:g} {wire} H{left + cell * (GPUS_PER_NODE - 0.5) - 1:g}", width=3)
        drawing.text(left + cell * GPUS_PER_NODE / 2, top + 152, "within a node: NVLink or PCIe", size=14, anchor="middle")
    return str(drawing)


def shuffled_indices(size, seed, epoch):
    """As common/data/data_loader.cpp draws them: torch.randperm() with a generator of seed + epoch."""
    state = [seed + epoch]
    for index in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + index) % 2**32)
    mersenne_twister = random.Random()
    mersenne_twister.setstate((3, (*state, 624), None))
    order = list(range(size))
    for index in range(size - 1):
        other = index + mersenne_twister.getrandbits(32) % (size - index)
        order[index], order[other] = order[other], order[index]
    return order


def rank_indices(order, rank, world_size):
    """As common/parallel/distributed_sampler.cpp takes them."""
    return order[rank::world_size]


SAMPLES, SEED, EPOCH, BATCH, RANKS = 16, 42, 0, 4, len(BARS)


def whose_samples(colours):
    """One process's batches and those of ranks."""
    order = shuffled_indices(SAMPLES, SEED, EPOCH)
    left, pitch, square, apart = 96, 27, 25, 8
    readers = [("one process", BATCH, order, "muted")] + [
        (f"rank {rank}", BATCH // RANKS, rank_indices(order, rank, RANKS), colour) for rank, colour in enumerate(BARS)]
    tops = (66, 132, 174)
    drawing = Drawing("Sixteen samples in one shuffled order. One process with a batch of four takes the next four in every step. Two ranks with a batch "
                      "of two share them: rank 0 takes the first and the third, rank 1 the second and the fourth", 288, colours)
    drawing.text(4, 20, "DistributedSampler", size=16, family=MONO, weight="600")
    drawing.text(WIDTH - 4, 20, "the ranks read what one process would", "muted", 14, anchor="end")

    def x_of(position):
        return left + pitch * position + apart * (position // BATCH)

    for step in range(SAMPLES // BATCH):
        x = x_of(step * BATCH)
        drawing.box(x - 4, 34, pitch * BATCH + 6, 174, "box", "line")
        drawing.text(x + pitch * BATCH / 2 - 1, 54, f"step {step}", size=14, anchor="middle", weight="600")
    for rank in range(RANKS):
        for position in range(rank, SAMPLES, RANKS):
            x = x_of(position) + square / 2
            drawing.arrow([(x, tops[0] + square), (x, tops[1 + rank] - 2)], readers[1 + rank][3])
    for top, (name, batch, indices, colour) in zip(tops, readers):
        drawing.text(4, top + 11, name, size=14)
        drawing.text(4, top + 28, f"batch {batch}", "muted", 13)
        for index in indices:
            x = x_of(order.index(index))
            drawing.box(x, top, square, square, colour, "none", radius=3)
            drawing.text(x + square / 2, top + 18, str(index), "on_bar", 14, anchor="middle")
    drawing.text(4, 234, f"order = shuffled_indices({SAMPLES}, {SEED}, {EPOCH})", size=13, family=MONO)
    for rank, colour in enumerate(BARS):
        places = " ".join(f"order[{place}]" for place in rank_indices(range(3 * RANKS), rank, RANKS))
        drawing.text(4, 256 + 22 * rank, f"rank {rank}: {places} ...", colour, 13, MONO)
    return str(drawing)


def drawn(document):
    """The SVG of every picture, by path."""
    svgs = {}
    for page, colours in (("light", LIGHT), ("dark", DARK)):
        svgs[ROOT / "docs" / f"stages_{page}.svg"] = stages(document, colours)
        for draw in (data_parallel, all_reduce, nodes, whose_samples):
            svgs[ROOT / "docs" / f"{draw.__name__}_{page}.svg"] = draw(colours)
    return svgs


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a picture is not what would be drawn")
    parser.add_argument("report", nargs="?", type=pathlib.Path, default=REPORT, metavar="REPORT.json")
    options = parser.parse_args(arguments)
    try:
        document = load(options.report)
        pictures = drawn(document)
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
