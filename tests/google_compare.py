#!/usr/bin/env python3
"""Checks that Google Benchmark's own compare.py reads reports of bench, and finds in them what is there.

usage: google_compare.py COMPARE_PY A.json [B.json]

Without B.json, B is A with every time 10 % longer. Needs numpy and scipy, as compare.py does. Exit codes: 0 good, 1 not, 2 usage.
"""

import collections
import json
import pathlib
import subprocess
import sys
import tempfile


def iterations(path):
    """The times of each name that is no aggregate, in order."""
    times = collections.defaultdict(list)
    for entry in json.loads(path.read_text())["benchmarks"]:
        if entry["run_type"] == "iteration":
            times[entry["name"]].append(entry["real_time"])
    return times


def slower_copy(path, folder):
    document = json.loads(path.read_text())
    for entry in document["benchmarks"]:
        entry["real_time"] *= 1.1
    copy = pathlib.Path(folder, "slower.json")
    copy.write_text(json.dumps(document))
    return copy


def change(a, b):
    """As compare.py defines it."""
    return 0 if a == b else (b - a) / a if a else 2


def check(compare_py, a, b):
    result = subprocess.run([sys.executable, compare_py, "--no-color", "benchmarks", a, b], capture_output=True, text=True)
    if result.returncode != 0:
        return [f"exit code {result.returncode}: {result.stderr}"]
    rows = collections.defaultdict(list)
    for line in result.stdout.splitlines():
        words = line.split()
        if len(words) == 7:
            rows[words[0]].append(float(words[1]))
    times_a, times_b = iterations(a), iterations(b)
    names = times_a.keys() & times_b.keys()
    failures = [] if names else ["the documents have no benchmark in common, expected some"]
    for name in names:
        expected = [change(old, new) for old, new in zip(times_a[name], times_b[name])]
        got = rows[name]
        if len(got) != len(expected) or not all(abs(g - e) <= 1e-4 for g, e in zip(got, expected)):
            failures.append(f"{name}: changes {got}, expected {expected}; its output:\n{result.stdout}")
    print(f"{len(names)} benchmarks, {sum(len(rows[name]) for name in names)} rows")
    return failures


def main(arguments):
    if len(arguments) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    paths = [pathlib.Path(argument) for argument in arguments[1:]]
    with tempfile.TemporaryDirectory() as folder:
        b = paths[1] if len(paths) == 2 else slower_copy(paths[0], folder)
        failures = check(arguments[0], paths[0], b)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
