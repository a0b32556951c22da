#!/usr/bin/env python3
"""Counts tests that cannot run, with reasons; tests that must be able to run fail: tests/support/leave_out.cmake.

usage: skips_test.py CMAKE CTEST
"""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import ROOT, Scratch  # noqa: E402

CMAKE, CTEST = sys.argv.pop(1), sys.argv.pop(1)
# Ways of Catch2, unittest and pytest to skip a test without a trace in ctest's summary.
SILENT = re.compile(r"\b(?:GTEST_)?SKIP\(|\bskipTest\b|\bSkipTest\b|unittest\.skip|pytest\.(?:skip|mark\.skip|importorskip)|WARN\(.skipped")


class Skips(Scratch):
    def test_a_skip_is_counted_with_its_reason_and_what_setup_installs_is_no_reason(self):
        self.write("CMakeLists.txt", f"""cmake_minimum_required(VERSION 3.25)
            project(skips LANGUAGES NONE)
            enable_testing()
            include({ROOT}/tests/support/leave_out.cmake)
            add_test(NAME good COMMAND true)
            leave_out(one gpu "no GPU here")
            leave_out(two cluster "user id 7, expected 0")
            leave_out(three launcher "no torchrun" MISSING)""")
        build = self.folder / "build"
        self.assertEqual(self.run_here(CMAKE, "-S", ".", "-B", build).returncode, 0)
        tests = self.run_here(CTEST, "--test-dir", build)
        self.assertNotEqual(tests.returncode, 0)
        self.assertRegex(tests.stdout, r"(?s)1 tests failed out of 4.*did not run:.*one \(Skipped\).*two \(Skipped\).*FAILED:.*three \(Failed\)")
        said = re.search(r"^log=.*?^sed [^\n]*", (ROOT / "tests/run.sh").read_text(), re.MULTILINE | re.DOTALL)[0]
        self.assertEqual(self.run_here("bash", "-euc", said).stdout, "2 skipped\n  one: no GPU here\n  two: user id 7, expected 0\n")

    def test_no_test_leaves_by_another_way(self):
        sources = [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".cpp", ".hpp", ".py") and path != pathlib.Path(__file__)]
        self.assertGreater(len(sources), 50)
        for path in sources:
            with self.subTest(path.relative_to(ROOT)):
                self.assertIsNone(SILENT.search(path.read_text(errors="replace")))


if __name__ == "__main__":
    unittest.main()
