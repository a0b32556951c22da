#!/usr/bin/env python3
"""Each exercise's task shows its symptom, its solution cures it, and its page quotes what both print.

usage: exercises_test.py BUILD_DIR [Pages] [Tool] [Cuda]      without a name Pages and Tool
"""

import contextlib
import importlib.machinery
import importlib.util
import io
import math
import pathlib
import re
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))

from pages import same_line  # noqa: E402

loader = importlib.machinery.SourceFileLoader("exercise", str(ROOT / "tools" / "exercise"))
exercise = importlib.util.module_from_spec(importlib.util.spec_from_loader("exercise", loader))
loader.exec_module(exercise)


def is_running(process):
    """Until somebody asks what became of it, one that has ended is a zombie."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"
    except OSError:
        return False


def needs_cuda(page):
    """Whether it needs a LibTorch with CUDA; no page needs a GPU."""
    return "build/tests/fake_driver" in page.task


class Exercises(unittest.TestCase):
    def check_pages(self, of_cuda):
        pages = [page for page in exercise.exercises() if needs_cuda(page) == of_cuda]
        self.assertTrue(pages)
        for page in pages:
            for (script, quoted), cured in zip(page.quoted, (False, True), strict=True):
                with self.subTest(page=page.path.name, cured=cured), mock.patch.object(exercise, "REPEATS", 1):
                    rows, facts = exercise.check(page, script, BUILD_DIR)
                    report = f"{rows}\n{facts['output']}"
                    # Other tests run beside this one: a time is compared, but what comes out is for a reader with an idle machine.
                    timed = [row for row in rows if row.ratio is not None]
                    for row in timed:
                        self.assertTrue(math.isfinite(row.ratio) and row.ratio > 0, report)
                    others = all(row.good for row in rows if row.ratio is None)
                    if cured or not timed:
                        self.assertEqual(others, cured, report)
                    for line in quoted:
                        self.assertTrue(any(same_line(line, printed) for printed in facts["output"].splitlines()), f"{line}\nin\n{facts['output']}")


class Pages(Exercises):
    def test_tasks_show_their_symptom_and_solutions_cure_it(self):
        self.check_pages(of_cuda=False)

    def test_every_row_is_read(self):
        for page in exercise.exercises():
            self.assertEqual(len(re.findall(r"^\| `", page.path.read_text(), re.MULTILINE)), len(page.rows), page.path.name)

    def test_every_page_is_listed_once_and_in_order(self):
        listed = re.findall(r"^\| \[(.+?)\]\((\S+)\) \|", (exercise.PAGES / "README.md").read_text(), re.MULTILINE)
        self.assertEqual(listed, [(page.title, page.path.name) for page in exercise.exercises()])


class Cuda(Exercises):
    """The pages whose programs must have been built with CUDA."""

    def test_tasks_show_their_symptom_and_solutions_cure_it(self):
        self.check_pages(of_cuda=True)


class Tool(unittest.TestCase):
    """With a page and programs of the test's own, so that what they print is known."""

    PAGE = """# 01 A title

```console
$ build/bin/TASK
```

<details>

```console
$ build/bin/SOLUTION
```

| what is looked at | expected |
|---|---|
ROWS

</details>
"""
    # The stages' last line, for the samples/s that it is called with.
    STAGE = """#!/bin/bash
echo "moved 1.5 | loss 0.1 | digest 0123456789abcdef | step 2.000 ms | $1 samples/s"
"""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-exercises-test-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bin").mkdir()
        self.program("01_single_gpu", self.STAGE)
        for name, value in ("PAGES", self.root), ("REPEATS", 3), ("TIMEOUT_S", 20):
            patch = mock.patch.object(exercise, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def program(self, name, text):
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def page(self, *rows, task="01_single_gpu 1", solution="01_single_gpu 1", given=""):
        text = self.PAGE.replace("ROWS", "\n".join(rows)).replace("TASK", task).replace("SOLUTION", solution)
        (self.root / "01_page.md").write_text(text.replace("```console", f"```console given\n$ {given}\n```\n\n```console", 1) if given else text)

    def run_tool(self, *arguments):
        """Its exit code, and what it printed."""
        output = io.StringIO()
        with mock.patch.object(sys, "argv", ["exercise", "01", "--build-dir", str(self.root), *arguments]), contextlib.redirect_stdout(output):
            code = exercise.main()
        return code, output.getvalue()

    def test_a_wrong_answer_is_told(self):
        self.page("| `moved` | `= 1.5` |", "| `samples_per_s` | `> 5` |", solution="01_single_gpu 9")
        code, output = self.run_tool("--check")
        self.assertEqual(code, 1)
        self.assertRegex(output, r"moved +yours 1.5\n +expected = 1.5: yes\nsamples_per_s +yours 1\n +expected > 5: no\nexercise 01: not as expected\n\Z")
        self.assertEqual(self.run_tool("--check", "build/bin/01_single_gpu 6")[0], 0)
        self.assertEqual(self.run_tool("--solution")[0], 0)

    def test_a_time_that_is_none_is_not_as_expected(self):
        for operator in "<", ">", "x2":
            self.page(f"| `samples_per_s` | `{operator} samples_per_s of build/bin/01_single_gpu 2` |")
            for samples in "nan", "0", "-1":
                code, output = self.run_tool("--check", f"echo 'moved 1 | loss 1 | digest 0 | step nan ms | {samples} samples/s'")
                self.assertEqual(code, 1, output)
                self.assertRegex(output, r"ratios nan: no\n")
        self.assertFalse(exercise.holds("nan", "~", "nan"))

    def test_what_is_given_runs_before_the_answer_and_nothing_stays_behind(self):
        self.page("| `samples_per_s` | `= 8` |", given="echo 8 > given; sleep 3600 & echo $! > started", solution="01_single_gpu $(cat given)")
        code, output = self.run_tool("--check", "cat started; build/bin/01_single_gpu $(cat given)")
        self.assertEqual(code, 0, output)
        left = int(output.splitlines()[0])
        deadline = time.monotonic() + 10
        while is_running(left) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(is_running(left))

    def test_an_answer_without_an_end_is_refused(self):
        self.page("| `moved` | `= 1.5` |")
        with mock.patch.object(exercise, "TIMEOUT_S", 0.2), self.assertRaisesRegex(exercise.Bad, "sleep 60: still ran after 0.2 s, expected an end"):
            self.run_tool("--check", "sleep 60")


if __name__ == "__main__":
    BUILD_DIR = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(defaultTest=["Pages", "Tool"])
