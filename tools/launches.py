#!/usr/bin/env python3
"""Launches commands again and again, and says how equal their steps are: a slow mode that lasts for a whole run shows only so.

usage: tools/launches.py [--launches 200] [--with=ARGUMENTS]... COMMAND...

COMMAND is a stage with its arguments. Each --with is a variant of it, with these arguments more; variants are launched in turns. Printed
for each: the median step of a launch in microseconds (fastest launch, 10 %, median, 90 %, slowest), how many launches take over 1.3 times
the fastest (and their median context switches), and the context switches of a launch, all its processes together.
"""

import argparse
import re
import resource
import shlex
import statistics
import subprocess
import sys


def launch(command):
    """(median step in milliseconds, samples a second, voluntary context switches, involuntary ones)"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = re.search(r"\| step ([\d.]+) ms \| (\d+) samples/s$", result.stdout, re.MULTILINE)
    if result.returncode != 0 or not found:
        sys.exit(f"launches.py: {shlex.join(command)}: exit code {result.returncode}, expected 0 and a last line\n"
                 f"{result.stdout}{result.stderr}")
    return float(found[1]), int(found[2]), after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw


def summary(launches):
    # Of a step of few microseconds the last line has too few digits: those of samples/s are enough.
    batch = round(statistics.median(step_ms * per_s for step_ms, per_s, *_ in launches) / 1e3)
    steps = sorted(1e6 * batch / per_s for _, per_s, *_ in launches)
    voluntary, involuntary = (sorted(column) for column in list(zip(*launches))[2:])
    low, high = steps[len(steps) // 10], steps[len(steps) * 9 // 10]
    fastest_per_s = max(per_s for _, per_s, *_ in launches)
    slow = [switches for _, per_s, switches, _ in launches if fastest_per_s > 1.3 * per_s]
    slow_text = f"{len(slow)} of {len(steps)}" + (f" (switches voluntary {statistics.median(slow):.0f})" if slow else "")
    return (f"step us {steps[0]:.4g} {low:.4g} {statistics.median(steps):.4g} {high:.4g} {steps[-1]:.4g}, p90/p10 {high / low:.2f}, "
            f"over 1.3 x fastest {slow_text}, switches voluntary {statistics.median(voluntary):.0f} (most {voluntary[-1]}), "
            f"involuntary {statistics.median(involuntary):.0f} (most {involuntary[-1]})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=200, metavar="N", help="of each variant, default 200")
    parser.add_argument("--with", action="append", dest="variants", metavar="ARGUMENTS", help="a variant, --with= the command as it is")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    variants = {more: [] for more in options.variants or [""]}
    for _ in range(options.launches):
        for more, launches in variants.items():
            launches.append(launch([*options.command, *shlex.split(more)]))
    for more, launches in variants.items():
        print(f"{shlex.join(options.command)} {more}".strip(), summary(launches), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
