#!/usr/bin/env python3
"""Each exercise's task shows its symptom, its solution cures it, and its page quotes what both print.

usage: exercises_test.py BUILD_DIR
"""

import importlib.machinery
import importlib.util
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
loader = importlib.machinery.SourceFileLoader("exercise", str(ROOT / "tools" / "exercise"))
exercise = importlib.util.module_from_spec(importlib.util.spec_from_loader("exercise", loader))
sys.dont_write_bytecode = True
loader.exec_module(exercise)


def is_printed(quoted, output):
    """Whether an output has the line that a page quotes, in which `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in quoted.split("..."))
    return re.search(f"^{pattern}$", output, re.MULTILINE) is not None


class Exercises(unittest.TestCase):
    def test_tasks_show_their_symptom_and_solutions_cure_it(self):
        pages = exercise.exercises()
        self.assertTrue(pages)
        self.assertEqual(len({page.number for page in pages}), len(pages))
        for page in pages:
            for (script, quoted), cured in zip(page.quoted, (False, True), strict=True):
                with self.subTest(page=page.path.name, cured=cured):
                    rows, facts = exercise.check(page, script, BUILD_DIR)
                    self.assertEqual(all(row[3] for row in rows), cured, f"{rows}\n{facts['output']}")
                    for line in quoted:
                        self.assertTrue(is_printed(line, facts["output"]), f"{line}\nin\n{facts['output']}")

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
    unittest.main()
