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
import subprocess
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


class Pages(unittest.TestCase):
    def check_pages(self, pages):
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

    def test_tasks_show_their_symptom_and_solutions_cure_it(self):
        self.check_pages([page for page in exercise.exercises() if not needs_cuda(page)])

    def test_every_row_is_read_and_none_lets_a_fault_be_left_out(self):
        for page in exercise.exercises():
            with self.subTest(page.path.name):
                self.assertEqual(len(re.findall(r"^\| `", page.path.read_text(), re.MULTILINE)), len(page.rows))
                for name in re.findall(r"--inject (\S+)", page.task + "\n" + page.solution):
                    self.assertIn(("injected", "=", name), page.rows)
                for fact, operator, _ in page.rows:
                    if fact in exercise.TIMES:
                        self.assertIn(operator[0], ">" if fact.endswith("_per_s") else "<x", fact)
                    self.assertLessEqual(float(operator[1:] or 1), 2, f"{fact} {operator}: too wide to find a mistake")

    def test_of_uneven_inputs_the_least_number_is_the_pages(self):
        page = exercise.find("10")
        least = int(re.search(r"down to (\d+),", page.path.read_text())[1])
        for size, is_enough in (least, True), (least - 1, False):
            facts = exercise.facts_of(*exercise.run(re.sub(r"--dataset-size \d+", f"--dataset-size {size}", page.solution), BUILD_DIR))
            self.assertEqual(facts.get("collective") == dict((fact, value) for fact, _, value in page.rows)["collective"], is_enough, facts)

    def test_every_page_is_listed_once_and_in_order(self):
        listed = re.findall(r"^\| \[(.+?)\]\((\S+)\) \|", (exercise.PAGES / "README.md").read_text(), re.MULTILINE)
        self.assertEqual(listed, [(page.title, page.path.name) for page in exercise.exercises()])


class Cuda(Pages):
    """The pages whose programs must have been built with CUDA."""

    # Pages has them.
    test_every_row_is_read_and_none_lets_a_fault_be_left_out = None
    test_of_uneven_inputs_the_least_number_is_the_pages = None
    test_every_page_is_listed_once_and_in_order = None

    def test_tasks_show_their_symptom_and_solutions_cure_it(self):
        self.check_pages([page for page in exercise.exercises() if needs_cuda(page)])


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

    def test_a_command_that_fails_is_told(self):
        self.page("| `moved` | `= 1.5` |", "| `exit` | `= 0` |", "| `samples_per_s` | `> samples_per_s of build/bin/01_single_gpu 1` |")
        for answer, expected in {"exit 7": "7", "build/bin/05_none 3": "127", "build/bin/01_single_gpu 3; exit 9": "9"}.items():
            code, output = self.run_tool("--check", answer)
            self.assertEqual(code, 1)
            self.assertIn(f"yours {expected}\n", output)
            self.assertIn("exercise 01: not as expected", output)

    def test_times_are_compared_in_turns(self):
        # Each launch is slower than the one before: in turns the second of a pair always has a little less.
        self.program("01_single_gpu", f"""#!/bin/bash
count=$(cat {self.root}/count 2> /dev/null || echo 100); echo $((count - 1)) > {self.root}/count
echo "moved 1.5 | loss 0.1 | digest 0123456789abcdef | step 2.000 ms | $((count * 1000)) samples/s"
""")
        self.page("| `samples_per_s` | `> samples_per_s of build/bin/01_single_gpu 2` |")
        code, output = self.run_tool("--check")
        self.assertEqual(code, 0, output)
        # The first launch, 100, is the one that is shown.
        self.assertRegex(output, r"yours 97000\n +expected > 96000  .*, medians of 3; of the ratios 1\.01: yes\n")

    def test_a_time_that_is_none_is_not_as_expected(self):
        for operator in "<", ">", "x2":
            self.page(f"| `samples_per_s` | `{operator} samples_per_s of build/bin/01_single_gpu 2` |")
            for samples in "nan", "0", "-1":
                code, output = self.run_tool("--check", f"echo 'moved 1 | loss 1 | digest 0 | step nan ms | {samples} samples/s'")
                self.assertEqual(code, 1, output)
                self.assertRegex(output, r"ratios nan: no\n")

    def test_an_option_of_the_answer_goes_into_what_it_is_compared_with(self):
        self.assertEqual(exercise.filled("a --layers {layers|20,1} --nprocs {nprocs|2} ${b}", "c --layers=64,4 --layers 64,8"),
                         "a --layers 64,8 --nprocs 2 ${b}")

    def test_what_is_given_runs_before_the_answer_and_nothing_stays_behind(self):
        self.page("| `samples_per_s` | `= 8` |", given="echo 8 > given; sleep 3600 & echo $! > started", solution="01_single_gpu $(cat given)")
        code, output = self.run_tool("--check", "cat started; build/bin/01_single_gpu $(cat given)")
        self.assertEqual(code, 0, output)
        left = int(output.splitlines()[0])
        deadline = time.monotonic() + 10
        while is_running(left) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(is_running(left))
        shown = io.StringIO()
        with mock.patch.object(sys, "argv", ["exercise", "01"]), contextlib.redirect_stdout(shown):
            exercise.main()
        self.assertIn("echo 8 > given", shown.getvalue())

    def test_a_prediction_is_the_step_and_the_all_reduces(self):
        line = "all_reduce/gloo/ranks:2/bytes:BYTES/manual_time       TIME us        0.099 us           51 algorithm_bandwidth=1.1087G/s"
        output = "\n".join(["moved 1 | loss 1 | digest 0 | step 2.500 ms | 7 samples/s",
                             line.replace("BYTES", "4").replace("TIME", "250.5"), line.replace("BYTES", "8000").replace("TIME", "1250")])
        facts = exercise.facts_of(0, output)
        self.assertEqual((facts["predicted_bytes"], facts["predicted_ms"]), ("8004", "4.000"))
        self.assertTrue(exercise.holds("2.1", "x2", "4"))
        for yours in "1.9", "8.1", "nan", "-4", "0":
            self.assertFalse(exercise.holds(yours, "x2", "4"))

    def test_facts_are_rank_0s_and_the_last_runs_but_an_error_the_first(self):
        epoch = "[CPU{}] Epoch {} | Batchsize: 16 | Steps: 64 | Loss: 1.0"
        facts = exercise.facts_of(0, "\n".join([
            "moved 1 | loss 1 | digest 0 | step 2.500 ms | 7 samples/s",
            "a: note: --inject no-mean: this run has a fault on purpose",
            "[CPU0] epoch 0 reads 1, 2", "[CPU1] epoch 0 reads 3, 4", "[CPU0] In model: input [16, 20] on cpu", epoch.format(0, 0), epoch.format(1, 0),
            "[CPU0] epoch 1 reads 1, 2", "[CPU1] epoch 1 reads 4, 3", epoch.format(0, 1), epoch.format(1, 1), "[CPU0] In model: input [99, 20] on cpu",
            *(f"a: error: rank 0 calls all_reduce sum of {number} float32, rank 1 calls all_gather of 2 int64; collective {number}, called at b:1"
              for number in (7, 8)),
            "moved 2 | loss 1 | digest 0 | step 2.500 ms | 7 samples/s"]))
        for fact, value in {"moved": "2", "injected": "no-mean", "orders": "1", "shape": "[16, 20]", "batch": "16", "steps": "64", "processes": "2",
                            "starts": "1", "collective": "7", "rank_0_calls": "all_reduce", "rank_1_calls": "all_gather"}.items():
            self.assertEqual(facts[fact], value, fact)
        used, taken = "[rank 2] CUDA error", "a: error: local rank 1 has no device of its own"
        for output, own in ((used, "yes"), (taken, "no"), (f"{used}\n{taken}", "no"), ("", None)):
            self.assertEqual(exercise.facts_of(1, output).get("own_device"), own)

    def test_an_answer_without_an_end_is_refused(self):
        self.page("| `moved` | `= 1.5` |")
        with mock.patch.object(exercise, "TIMEOUT_S", 0.2), self.assertRaisesRegex(exercise.Bad, "sleep 60: still ran after 0.2 s, expected an end"):
            self.run_tool("--check", "sleep 60")

    def test_a_fact_that_is_missing_is_not_as_expected(self):
        for operator in "=~<>":
            self.assertFalse(exercise.holds(None, operator, "1"))
            self.assertFalse(exercise.holds("1", operator, None))
        self.assertFalse(exercise.holds("1.0002", "~", "1"))
        self.assertTrue(exercise.holds("1.00009", "~", "1"))
        self.assertFalse(exercise.holds("nan", "~", "nan"))

    def test_the_task_is_shown_without_its_solution(self):
        result = subprocess.run([ROOT / "tools/exercise", "01"], check=False, text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("--sampler none", result.stdout)
        self.assertNotIn("details", result.stdout)
        self.assertNotIn("Without the sampler an epoch", result.stdout)

    def test_an_unknown_number_is_one_line(self):
        result = subprocess.run([ROOT / "tools/exercise", "99"], check=False, text=True, capture_output=True)
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"\Aexercise: error: exercise: got 99, expected one of 01, .*\n\Z")


if __name__ == "__main__":
    BUILD_DIR = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(defaultTest=["Pages", "Tool"])
