"""A test case with a folder of its own; and checks outside of unittest, which run side by side because most of their time is waiting."""

import concurrent.futures
import os
import pathlib
import subprocess
import tempfile
import time
import traceback
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, path, content, mode=0o644):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def run_here(self, *command, options={}, **variables):
        """Runs a command in the folder, with no input. @param options of subprocess.run() @param variables of the environment
        @return the result, with texts"""
        return subprocess.run(list(map(str, command)), cwd=self.folder, env=os.environ | variables, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=300, **options)

    def script(self, path, text):
        return self.write(path, text, 0o755)


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def run_cases(cases, workers):
    """@param cases names, and functions that may return a note; the longest first. @return exit code: 0 if every check holds"""
    def passes(case):
        begin = time.monotonic()
        try:
            note, passed = case[1]() or "", True
        except Exception:
            note, passed = traceback.format_exc(), False
        print(f"{'ok    ' if passed else 'FAILED'} {case[0]} ({time.monotonic() - begin:.1f} s) {note}", flush=True)
        return passed

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        passed = list(pool.map(passes, cases))
    print(f"{sum(passed)} of {len(passed)} passed")
    return 0 if all(passed) else 1
