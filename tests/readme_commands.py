#!/usr/bin/env python3
"""Runs every command that a page shows in a ```console block after `$ `, as a reader would, in a copy of the checkout.

Lines below a command, up to the next one, are its expected output: numbers may differ, words may not, and `...` stands for any lines.
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

from stage_diffs import ROOT, pages  # noqa: E402
from transcripts import CONSOLE, commands, copy_of_checkout, run_command  # noqa: E402

NUMBER = re.compile(r"\b[0-9a-f]{16}\b|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# These are what runs this test, or take minutes and are tested elsewhere.
NOT_HERE = ("./tests/run.sh", "./bench/run.sh", "git clone", "cd ", "cmake ", "sbatch ", "build/bin/bench ")


def pattern(line):
    """Any number stands for any number."""
    return r"\S+".join(re.escape(part) for part in NUMBER.split(line.strip()))


def missing_lines(expected, got):
    """The expected lines that were not printed, wherever: ranks print in any order."""
    return [line for line in expected if line.strip() not in ("", "...")
            and not any(re.fullmatch(pattern(line), other.strip()) for other in got)]


def main():
    failed = left_out = 0
    printed = {}  # a command that several pages show runs once
    with copy_of_checkout() as (folder, environment):
        for page in pages():
            for command, expected in (shown for block in CONSOLE.findall(page.read_text()) for shown in commands(block)):
                if command.startswith(NOT_HERE):
                    left_out += 1
                    print(f"left out {page.relative_to(ROOT)}: {command}")
                    continue
                if command not in printed:
                    # No test but `gpu` sees one, see catch_main.cpp.
                    on_cpu = command.replace("CUDA_VISIBLE_DEVICES=$node", "CUDA_VISIBLE_DEVICES=")
                    printed[command] = run_command(on_cpu, folder, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                result = printed[command]
                missing = missing_lines(expected, result.stdout.splitlines())
                ok = result.returncode == 0 and not missing
                print(f"{'ok    ' if ok else 'FAILED'} {page.relative_to(ROOT)}: {command}")
                if not ok:
                    failed += 1
                    print(f"exit code {result.returncode}; not in the output: {missing}; output:\n{result.stdout[-2000:]}")
    print(f"{len(printed)} commands run, {failed} failed, {left_out} left out")
    if not printed:
        print("found no command, expected some")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
