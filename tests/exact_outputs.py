#!/usr/bin/env python3
"""Runs the commands of the pages whose outputs are always the same, and compares them to the last character.

On these pages a ```console block has one command, and the ```text block below it all that the command prints, stderr included. Pictures that a
command writes into docs/ are compared too. With --write, puts what was printed and written into the pages instead.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))

from stage_diffs import ROOT  # noqa: E402
from transcripts import copy_of_checkout, run_command  # noqa: E402

PAGES = ("docs/collectives.md", "docs/cost_of_a_step.md", "docs/simulator.md")
SHOWN = re.compile(r"```console\n\$ ([^\n]+)\n```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
PICTURE = re.compile(r"\bdocs/[\w.-]+\.svg\b")


def blocks(page):
    for part in re.split(r"(?=^```console$)", page, flags=re.MULTILINE):
        match = SHOWN.match(part)
        if match:
            yield match[1], match[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put what is printed into the pages")
    is_write = parser.parse_args().write
    failed = shown = 0
    with copy_of_checkout() as (folder, environment):
        environment["CUDA_VISIBLE_DEVICES"] = ""  # no test but `gpu` sees one
        for name in PAGES:
            page = (ROOT / name).read_text()
            if page.count("```console\n") != len(list(blocks(page))):
                print(f"FAILED {name}: a console block that has not one command and its output in a text block below it, or nothing")
                failed += 1
            for command, output in blocks(page):
                for picture in PICTURE.findall(command):
                    (folder / picture).unlink(missing_ok=True)
                result = run_command(command, folder, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                ok = result.returncode == 0
                if output is not None:
                    shown += 1
                    ok = ok and (is_write or result.stdout == output)
                    if is_write:
                        page = page.replace(f"```console\n$ {command}\n```\n\n```text\n{output}```\n",
                                            f"```console\n$ {command}\n```\n\n```text\n{result.stdout}```\n")
                for picture in PICTURE.findall(command):
                    if is_write:
                        shutil.copy(folder / picture, ROOT / picture)
                    ok = ok and (folder / picture).read_bytes() == (ROOT / picture).read_bytes()
                print(f"{'ok    ' if ok else 'FAILED'} {name}: {command}")
                if not ok:
                    failed += 1
                    print(f"exit code {result.returncode}; expected:\n{output}\ngot:\n{result.stdout}")
            if is_write:
                (ROOT / name).write_text(page)
    print(f"{shown} outputs, {failed} failed")
    return 1 if failed or shown < len(PAGES) else 0


if __name__ == "__main__":
    sys.exit(main())
