#!/usr/bin/env python3
"""tests/gpu.sh on the CPU, as on another machine: a packed build, LibTorch elsewhere, and what they were made from out of sight.

usage: gpu_test.py BUILD_DIR LIBTORCH PYTHON [unittest options]     PYTHON: the one that LIBTORCH was installed for
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD, SITE_PACKAGES = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve().parent
HIDDEN = (SITE_PACKAGES, ROOT, BUILD)
PYTHON = os.path.realpath(sys.argv[3])


class Carried(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ddp-gpu-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        (cls.folder / "site").mkdir()
        (cls.folder / "bin").mkdir()
        (cls.folder / "bin/python3").symlink_to(PYTHON)
        subprocess.run([ROOT / "tests/gpu.sh", "pack", cls.folder / "packed", BUILD], check=True)

    def run_there(self, *options, **environment):
        """Only root can put empty folders over what must not be used; another user's test finds it all in its old place."""
        gpu_sh = self.folder / "packed/tests/gpu.sh"
        command = shlex.join(map(str, [gpu_sh, "--device", "cpu", "--quick", *options, self.folder / "results"]))
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environment = {"PIP_NO_INDEX": "1", "PYTHONPATH": f"{self.folder}/site", "PATH": path, **environment}
        if os.geteuid() == 0:
            mounts = f"mount --bind {shlex.quote(str(SITE_PACKAGES))} {self.folder}/site\n" + "".join(
                f"mount -t tmpfs none {shlex.quote(str(hidden))}\n" for hidden in HIDDEN if ROOT not in hidden.parents)
            words = ["unshare", "--mount", "sh", "-ec", f"cd {self.folder}\n{mounts}exec {command}"]
        else:
            (self.folder / "site").rmdir()
            (self.folder / "site").symlink_to(SITE_PACKAGES)
            words = ["sh", "-c", command]
        others = {name: value for name, value in os.environ.items() if name not in ("LIBTORCH", "LD_LIBRARY_PATH")}
        return subprocess.run(words, cwd=self.folder, env={**others, **environment}, capture_output=True, text=True)

    def results(self):
        return json.loads((self.folder / "results/results.json").read_text())

    def test_every_check_runs_and_passes(self):
        result = self.run_there()
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        results = self.results()
        checks, count = results["gpu_checks"], len(results["gpu_checks"]["checks"])
        self.assertEqual(checks["counts"], {"passed": count, "failed": 0, "not run": 0})
        texts = {check["name"]: check["text"] for check in checks["checks"]}
        self.assertEqual(texts["the fused step's ReLU"], "ReLU in the product's kernel")
        self.assertEqual(checks["libtorch"], str(self.folder / "site/torch"))
        self.assertGreaterEqual({run["kind"] for run in results["ddp_scaling"]["runs"]}, {"stage", "peer"})
        self.assertIn(f"{count} passed, 0 failed, 0 not run", (self.folder / "results/summary.txt").read_text())

    def test_what_fails_or_is_not_run_is_not_green(self):
        stage = self.folder / "packed/build/bin/02_data_parallel"
        self.addCleanup(shutil.move, shutil.move(stage, self.folder / "02"), stage)
        stage.write_text("#!/bin/sh\necho 'no GPU for us' >&2\nexit 3\n")
        stage.chmod(0o755)
        result = self.run_there("--limit", 16)
        self.assertEqual(result.returncode, 1, result.stdout)
        checks = self.results()["gpu_checks"]["checks"]
        failed = [check for check in checks if check["status"] == "failed"]
        self.assertEqual([check["name"] for check in failed], ["parity of 02, 2 replicas"])
        self.assertIn("exit code 3: no GPU for us: build/bin/02_data_parallel", failed[0]["text"])
        self.assertEqual(checks[0]["status"], "passed")
        self.assertEqual((checks[-1]["status"], checks[-1]["text"]), ("not run", "no time was left, see --limit"))

    def test_without_libtorch_one_line_says_so(self):
        result = self.run_there(LIBTORCH="/nowhere")
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
        self.assertIn('LIBTORCH="/nowhere"', result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
