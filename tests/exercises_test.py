#!/usr/bin/env python3
"""Each exercise's copy shows the symptom of its page and fails its check, and the solution passes.

usage: exercises_test.py BUILD_DIR [NUMBER...]      default: all exercises
       exercises_test.py                            only what needs no build
"""

import concurrent.futures
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))

from pages import same_line  # noqa: E402

loader = importlib.machinery.SourceFileLoader("exercise", str(ROOT / "tools" / "exercise"))
exercise = importlib.util.module_from_spec(importlib.util.spec_from_loader("exercise", loader))
loader.exec_module(exercise)


def complaints(page):
    """What is wrong with the exercise, once with its copy and once with its solution."""
    for should_pass in False, True:
        with tempfile.TemporaryDirectory(prefix="ddp-exercises-test-") as name:
            folder = pathlib.Path(name)
            if page.source:
                (folder / page.file_name).write_text(page.right if should_pass else page.broken)
            elif should_pass:
                exercise.run(page.solution, page, folder, BUILD_DIR)
            if errors := exercise.build(page, folder, BUILD_DIR):
                yield f"{page.title}: does not compile\n{errors}"
                continue
            passes, verdicts, output = exercise.check(page, folder, BUILD_DIR)
        report = "\n".join([*verdicts, output])
        if passes != should_pass:
            yield f"{page.title}: the {'solution fails' if should_pass else 'copy passes'}\n{report}"
        for _, quoted in () if should_pass else page.run:
            yield from (f"{page.title}: not printed: {line}\n{report}" for line in quoted
                        if line != "..." and not any(same_line(line, printed) for printed in output.splitlines()))


class Programs(unittest.TestCase):
    def test_copies_fail_with_their_symptom_and_solutions_pass(self):
        chosen = [page for page in exercise.exercises() if page.number in NUMBERS or not NUMBERS]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = [complaint for some in pool.map(lambda page: list(complaints(page)), chosen) for complaint in some]
        self.assertEqual(found, [], "\n".join(found))


class Pages(unittest.TestCase):
    def test_every_exercise_is_listed_once_and_in_order(self):
        listed = re.findall(r"^\| \[(.+?)\]\((\S+?)#", (exercise.PAGES / "README.md").read_text(), re.MULTILINE)
        self.assertEqual(listed, [(page.title, page.page.name) for page in exercise.exercises()])
        self.assertEqual([page.number for page in exercise.exercises()], [f"{number:02}" for number in range(1, 13)])

    def test_every_row_is_read_and_every_copy_differs_from_its_solution(self):
        rows = sum(len(re.findall(r"^\| `", path.read_text(), re.MULTILINE)) for path in exercise.PAGES.glob("*.md"))
        self.assertEqual(sum(len(page.rows) for page in exercise.exercises()), rows)
        self.assertEqual([page.number for page in exercise.exercises() if page.source and page.broken == page.right], [])

    def test_the_first_step_that_differs_is_named(self):
        self.assertIsNone(exercise.first_difference([1.0, 2.0], [1.00005, 2.0]))
        for yours in ([1.0, 2.1], [1.0, float("nan")], [1.0], [], None):
            self.assertRegex(exercise.first_difference(yours, [1.0, 2.0]), "^step 1: |steps, expected 2$")
        self.assertTrue(exercise.first_difference([], []))

    def test_a_diff_fits_or_is_refused(self):
        diff = " a\n-b\n+B\n@@\n c\n+d\n"
        self.assertEqual(exercise.changed("a\nb\nc\n", diff), "a\nB\nc\nd\n")
        self.assertEqual(exercise.changed("a\nB\nc\nd\n", diff, backwards=True), "a\nb\nc\n")
        for text in "a\nc\n", "a\nb\na\nb\nc\n":
            with self.assertRaisesRegex(exercise.Bad, "places with these lines, expected 1"):
                exercise.changed(text, diff)

    def test_a_number_that_is_none_is_wrong(self):
        self.assertFalse(exercise.holds("1", "~", "inf"))
        self.assertTrue(exercise.first_difference(exercise.step_losses('{"step": 0, "loss": null}'), [1.0]))
        for operator in "~", "!~", ">", "=":
            self.assertFalse(exercise.holds("nan", operator, "1"))
            self.assertFalse(exercise.holds(None, operator, "1"))
        self.assertTrue(exercise.holds("1.40941", "~", "1.40949"))
        self.assertFalse(exercise.holds("1.40941", "~", "1.40997"))


if __name__ == "__main__":
    BUILD_DIR = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    NUMBERS = sys.argv[2:]
    unittest.main(argv=sys.argv[:1], defaultTest=["Pages", "Programs"] if BUILD_DIR else ["Pages"])
