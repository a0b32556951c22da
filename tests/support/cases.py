"""Checks outside of unittest, which run side by side because most of their time is waiting."""

import concurrent.futures
import time
import traceback


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
