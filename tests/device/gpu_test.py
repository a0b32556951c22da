#!/usr/bin/env python3
"""tests/gpu.sh on the CPU, as on another machine: a packed build, LibTorch elsewhere, and without the files they were made from.

usage: gpu_test.py BUILD_DIR LIBTORCH PYTHON [unittest options]     PYTHON: the one that LIBTORCH was installed for
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, SITE_PACKAGES = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve().parent
PYTHON = os.path.realpath(sys.argv[3])


class Carried(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ddp-gpu-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        (cls.folder / "bin").mkdir()
        (cls.folder / "bin/python3").symlink_to(PYTHON)
        if os.geteuid() == 0:
            (cls.folder / "site").mkdir()
        else:
            (cls.folder / "site").symlink_to(SITE_PACKAGES)
        subprocess.run([ROOT / "tests/gpu.sh", "pack", cls.folder / "packed", BUILD], check=True)

    def run_there(self, **environment):
        """Hides files that must not be used. Only root can mount empty folders over them; for other users they stay visible."""
        words = [self.folder / "packed/tests/gpu.sh", "--device", "cpu", self.folder / "results.json"]
        if os.geteuid() == 0:
            hidden = [path for path in (SITE_PACKAGES, ROOT, BUILD) if path == ROOT or ROOT not in path.parents]
            mounts = "".join(f"mount -t tmpfs none {shlex.quote(str(path))}\n" for path in hidden)
            words = ["unshare", "--mount", "sh", "-ec", f"mount --bind {shlex.quote(str(SITE_PACKAGES))} {self.folder}/site\n{mounts}"
                     f"exec {shlex.join(map(str, words))}"]
        environment = {"PYTHONPATH": f"{self.folder}/site", "PATH": f"{self.folder}/bin:{os.environ['PATH']}", **environment}
        others = {name: value for name, value in os.environ.items() if name not in ("LIBTORCH", "LD_LIBRARY_PATH")}
        return subprocess.run(words, cwd=self.folder, env={**others, **environment}, capture_output=True, text=True)

    def test_1_every_check_passes(self):
        result = self.run_there()
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        results = json.loads((self.folder / "results.json").read_text())
        self.assertEqual(results["libtorch"], str(self.folder / "site/torch"))
        self.assertGreaterEqual(len(results["checks"]), 10)
        self.assertTrue(result.stdout.endswith(f"{len(results['checks'])} passed, 0 failed\n"), result.stdout)

    def test_2_what_fails_is_named(self):
        stages = self.folder / "packed/build/bin"
        (stages / "02_data_parallel").write_text("#!/bin/sh\necho 'moved nan |'\n")
        (stages / "02_data_parallel_mirrored").write_text("#!/bin/sh\necho 'no GPU for us' >&2\nexit 3\n")
        result = self.run_there()
        self.assertEqual(result.returncode, 1, result.stdout)
        failed = {check["name"]: check["error"] for check in json.loads((self.folder / "results.json").read_text())["checks"] if check["error"]}
        self.assertEqual({name.partition(",")[0] for name in failed}, {"02_data_parallel", "02_data_parallel_mirrored"})
        self.assertIn("moved nan, expected ", failed["02_data_parallel, Adam, batch of 2 devices"])
        self.assertIn("exit code 3: no GPU for us: build/bin/02_data_parallel_mirrored", failed["02_data_parallel_mirrored, digits, batch of 2 devices"])

    def test_3_without_libtorch_one_line_says_so(self):
        result = self.run_there(LIBTORCH="/nowhere")
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
        self.assertIn('LIBTORCH="/nowhere"', result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
