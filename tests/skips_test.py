#!/usr/bin/env python3
"""Counts tests that cannot run, with reasons; tests that must be able to run fail: tests/leave_out.cmake, tests/skipped.sh.

usage: skips_test.py CMAKE CTEST
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CMAKE, CTEST = sys.argv.pop(1), sys.argv.pop(1)
# Ways of Catch2, unittest and pytest to skip a test without a trace in ctest's summary.
SILENT = re.compile(r"\b(?:GTEST_)?SKIP\(|\bskipTest\b|\bSkipTest\b|unittest\.skip|pytest\.(?:skip|mark\.skip|importorskip)|WARN\(.skipped")


class Skips(unittest.TestCase):
    def run_tests(self, *lines):
        """@return ctest's exit code and output, for a project with these tests and a test that passes; and skipped.sh's output"""
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "CMakeLists.txt").write_text("\n".join([
                "cmake_minimum_required(VERSION 3.25)", "project(skips LANGUAGES NONE)", "enable_testing()",
                f"include({ROOT}/tests/leave_out.cmake)", "add_test(NAME good COMMAND true)", *lines]) + "\n")
            subprocess.run([CMAKE, "-S", folder, "-B", f"{folder}/build"], check=True, capture_output=True)
            tests = subprocess.run([CTEST, "--test-dir", f"{folder}/build"], capture_output=True, text=True)
            said = subprocess.run([ROOT / "tests/skipped.sh", f"{folder}/build"], capture_output=True, text=True)
        self.assertEqual(said.stderr, "")
        return tests.returncode, tests.stdout, said.stdout

    def test_a_skip_is_counted_with_its_reason(self):
        code, said, skipped = self.run_tests('leave_out(one gpu "no GPU here")', 'leave_out(two cluster "user id 7, expected 0")')
        self.assertEqual((code, skipped), (0, "2 skipped\n  one: no GPU here\n  two: user id 7, expected 0\n"), said)
        self.assertIn("(Skipped)", said)

    def test_what_setup_installs_is_no_reason(self):
        code, said, skipped = self.run_tests('leave_out(one launcher "no torchrun" MISSING)')
        self.assertEqual((code != 0, skipped), (True, "0 skipped\n"))
        self.assertIn("1 tests failed out of 2", said)

    def test_no_test_leaves_by_another_way(self):
        sources = [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".cpp", ".hpp", ".py") and path != pathlib.Path(__file__)]
        self.assertGreater(len(sources), 50)
        for path in sources:
            with self.subTest(path.relative_to(ROOT)):
                self.assertIsNone(SILENT.search(path.read_text(errors="replace")))


if __name__ == "__main__":
    unittest.main()
