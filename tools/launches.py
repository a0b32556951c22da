#!/usr/bin/env python3
"""Launches commands again and again, and says how equal their steps are: a slow mode that lasts for a whole run shows only so.

usage: tools/launches.py [--launches 200] [--phases] [--with=ARGUMENTS]... COMMAND...

COMMAND is a stage with its arguments. Each --with is a variant of it, with these arguments more; variants are launched in turns. Printed
for each: the median step of a launch in microseconds (fastest launch, 10 %, median, 90 %, slowest), how many launches take over 1.3 times
the fastest (and their median context switches), and the context switches of a launch, all its processes together; for each variant but the
first also its step over the first's, turn by turn: the median of these ratios and its 95 % interval. With --phases also
where a step's time goes, in the launches that are slow and in the others: what the ranks do beside communication (the slowest of a step, and
the fastest), and the communication of the last one, who waits for nobody, as --metrics has it (medians over steps, then over launches); and in
how many launches of a variant that slowest rank is slow, which compares launches that communicate with those that do not.
"""

import argparse
import collections
import dataclasses
import json
import math
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile

SLOW = 1.3  # times the fastest


@dataclasses.dataclass
class Phases:
    """Medians over steps, in microseconds."""

    slowest_us: float  # rank of a step, without what it waited
    fastest_us: float
    least_comm_us: float  # of the ranks: what the last one spends, who waits for nobody

    @classmethod
    def of(cls, metrics):
        steps = collections.defaultdict(list)
        for row in map(json.loads, metrics.splitlines()):
            if "step" in row:
                steps[row["epoch"], row["step"]].append((row["step_ms"] - row["exposed_comm_ms"], row["exposed_comm_ms"]))
        if not steps:
            sys.exit("launches.py: --metrics has no step, expected some")
        rows = []
        for ranks in steps.values():
            own, waits = zip(*ranks)
            rows.append((max(own), min(own), min(waits)))
        return cls(*(1e3 * statistics.median(column) for column in zip(*rows)))


@dataclasses.dataclass
class Launch:
    step_ms: float  # the median of its steps
    samples_per_s: int
    voluntary: int  # context switches of all its processes
    involuntary: int
    phases: Phases | None = None


def launch(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = re.search(r"\| step ([\d.]+) ms \| (\d+) samples/s$", result.stdout, re.MULTILINE)
    if result.returncode != 0 or not found:
        sys.exit(f"launches.py: {shlex.join(command)}: exit code {result.returncode}, expected 0 and a last line\n"
                 f"{result.stdout}{result.stderr}")
    return Launch(float(found[1]), int(found[2]), after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw)


def launch_with_phases(command):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder, "metrics.jsonl")
        launched = launch([*command, "--metrics", str(metrics)])
        launched.phases = Phases.of(metrics.read_text())
    return launched


def show_phases(name, launches):
    if not launches:
        return ""
    slowest, fastest, comm = (statistics.median(column) for column in zip(*(dataclasses.astuple(one.phases) for one in launches)))
    return f"\n  {name}: without what it waits the slowest rank takes {slowest:.4g} us, the fastest {fastest:.4g}; communication of the last one {comm:.3g}"


def show_slow_ranks(launches):
    """The last line's step is the largest of the ranks' medians: ranks that are slow in turns count there only if they wait for each other."""
    own = [one.phases.slowest_us for one in launches]
    return f"\n  without what it waits the slowest rank of a step takes over {SLOW} x the least in {sum(us > SLOW * min(own) for us in own)} of {len(own)}"


def summary(launches):
    # Of a step of few microseconds the last line has too few digits: those of samples/s are enough.
    batch = round(statistics.median(one.step_ms * one.samples_per_s for one in launches) / 1e3)
    steps = sorted(1e6 * batch / one.samples_per_s for one in launches)
    voluntary = sorted(one.voluntary for one in launches)
    involuntary = sorted(one.involuntary for one in launches)
    low, high = steps[len(steps) // 10], steps[len(steps) * 9 // 10]
    fastest_per_s = max(one.samples_per_s for one in launches)
    slow = [one for one in launches if fastest_per_s > SLOW * one.samples_per_s]
    others = [one for one in launches if one not in slow]
    phases_text = ""
    if launches[0].phases is not None:
        phases_text = show_slow_ranks(launches) + show_phases("slow ones", slow) + show_phases("others", others)
    slow_text = f"{len(slow)} of {len(steps)}" + (f" (switches voluntary {statistics.median(one.voluntary for one in slow):.0f})" if slow else "")
    return (f"step us {steps[0]:.4g} {low:.4g} {statistics.median(steps):.4g} {high:.4g} {steps[-1]:.4g}, p90/p10 {high / low:.2f}, "
            f"over {SLOW} x fastest {slow_text}, switches voluntary {statistics.median(voluntary):.0f} (most {voluntary[-1]}), "
            f"involuntary {statistics.median(involuntary):.0f} (most {involuntary[-1]}){phases_text}")


def show_ratio(launches, first):
    ratios = sorted(other.samples_per_s / one.samples_per_s for one, other in zip(launches, first))
    outside = math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios)))  # on each side of the interval: order statistics of the median
    interval = f"{ratios[outside]:.4f} to {ratios[-1 - outside]:.4f}" if outside >= 0 else "too few turns for an interval"
    return f"step over the first variant's {statistics.median(ratios):.4f} ({interval})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=200, metavar="N", help="of each variant, default 200")
    parser.add_argument("--phases", action="store_true", help="where the time goes, by --metrics, which takes some itself")
    parser.add_argument("--with", action="append", dest="variants", metavar="ARGUMENTS", help="a variant, --with= the command as it is")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    variants = {more: [] for more in options.variants or [""]}
    start = launch_with_phases if options.phases else launch
    for _ in range(options.launches):
        for more, launches in variants.items():
            launches.append(start([*options.command, *shlex.split(more)]))
    first = next(iter(variants.values()))
    for more, launches in variants.items():
        ratio = [] if launches is first else [show_ratio(launches, first)]
        print(f"{shlex.join(options.command)} {more}".strip(), summary(launches), *ratio, sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
