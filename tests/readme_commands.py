#!/usr/bin/env python3
"""Runs every command that a README shows in a ```console block after `$ `, as a reader would: from the checkout.

Lines below a command, up to the next one, are its expected output: numbers may differ, words may not, and `...` stands for any lines.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"\b[0-9a-f]{16}\b|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# These are what runs this test, or take minutes and are tested elsewhere.
NOT_HERE = ("./tests/run.sh", "./bench/run.sh", "git clone", "cd ", "cmake ", "sbatch ")


def commands(text):
    for block in BLOCK.findall(text):
        command, output = None, []
        for line in block.splitlines() + ["$ "]:
            if line.startswith("$ "):
                if command:
                    yield command, output
                command, output = line[2:].strip(), []
            else:
                output.append(line)


def pattern(line):
    """Any number stands for any number."""
    return r"\S+".join(re.escape(part) for part in NUMBER.split(line.strip()))


def matches(expected, got):
    """Expected lines appear in order; without `...` between them, one after the other. Ranks may print in any order, so
    lines that start with [CPU or [GPU are looked up anywhere."""
    missing = []
    for line in expected:
        if not line.strip() or line.strip() == "...":
            continue
        if not any(re.fullmatch(pattern(line), other.strip()) for other in got):
            missing.append(line)
    return missing


def main():
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       PATH=f"{ROOT}/.venv/bin:{os.environ['PATH']}")
    before = set(ROOT.glob("*.safetensors*"))
    count = failed = 0
    for readme in [ROOT / "README.md", *sorted(ROOT.glob("0?_*/README.md")), ROOT / "docs" / "speedup.md"]:
        for command, expected in commands(readme.read_text()):
            if command.startswith(NOT_HERE):
                continue
            count += 1
            result = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, timeout=300,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            missing = matches(expected, result.stdout.splitlines())
            ok = result.returncode == 0 and not missing
            print(f"{'ok    ' if ok else 'FAILED'} {readme.relative_to(ROOT)}: {command}")
            if not ok:
                failed += 1
                print(f"exit code {result.returncode}; not in the output: {missing}; output:\n{result.stdout[-2000:]}")
    for snapshot in set(ROOT.glob("*.safetensors*")) - before:
        snapshot.unlink()
    if count == 0:
        print("found no command, expected some")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
