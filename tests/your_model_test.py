#!/usr/bin/env python3
"""docs/your_model is built against an installation of this build, by find_package() and outside the tree, and trains.

usage: your_model_test.py BUILD_DIR CMAKE TORCHRUN CXX_FLAGS
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ["2", "2112"]  # 33 steps an epoch


def run(command, **options):
    return subprocess.run([str(word) for word in command], check=False, text=True, capture_output=True, timeout=240, **options)


def losses(result):
    return [float(loss) for loss in re.findall(r"^epoch \d+ \| loss (\S+)$", result.stdout, re.MULTILINE)]


def ends(result):
    """{rank: (moved, digest)}"""
    found = re.findall(r"^\[rank (\d+)\] moved (\S+) \| digest (\w{32})$", result.stdout, re.MULTILINE)
    return {int(rank): (float(moved), digest) for rank, moved, digest in found}


class YourModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build_dir, cmake, _, flags = ARGUMENTS
        # Always the same folder, so that ccache knows what it compiles.
        folder = pathlib.Path(build_dir).resolve() / "tests" / "outside"
        shutil.rmtree(folder, ignore_errors=True)
        cls.prefix = folder / "prefix"
        cls.program = folder / "build" / "your_model"
        shutil.copytree(ROOT / "docs/your_model", folder / "source")
        ccache = shutil.which("ccache")
        for command in (
            [cmake, "--install", build_dir, "--prefix", cls.prefix],
            [cmake, "-G", "Ninja", "-S", folder / "source", "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={cls.prefix}",
             f"-DCMAKE_CXX_FLAGS=-O1 {flags}", *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else [])],
            [cmake, "--build", folder / "build"],
        ):
            result = run(command)
            if result.returncode != 0:
                raise AssertionError(f"{command}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="ddp-your-model-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def torchrun(self, *command):
        return run([ARGUMENTS[2], "--standalone", "--nproc-per-node=2", "--no-python", *command], cwd=self.folder)

    def test_two_ranks_end_on_the_weights_of_one(self):
        two = self.torchrun(self.program, *WORK)
        self.assertEqual(two.returncode, 0, two.stderr)
        self.assertEqual(os.listdir(self.folder), ["your_model.pt"])
        one = run([self.program, *WORK], cwd=self.folder)
        self.assertEqual(one.returncode, 0, one.stderr)
        ranks, (alone_moved, _) = ends(two), ends(one)[0]
        self.assertEqual(sorted(ranks), [0, 1])
        self.assertEqual(ranks[0], ranks[1])
        self.assertGreater(alone_moved, 0.1)
        self.assertLess(abs(ranks[0][0] - alone_moved), 1e-4 * alone_moved)
        for result in two, one:
            first, last = losses(result)
            self.assertLess(last, 0.8 * first)

    def test_ranks_with_other_settings_are_refused(self):
        result = self.torchrun("sh", "-c", f"exec {self.program} 1 $((256 + RANK))")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r'your_model: error: \[rank \d\] settings: rank 1 has "samples 257", rank 0 has "samples 256", expected the same')

    def test_a_gpus_module_is_that_of_the_installation(self):
        module = self.prefix / "lib" / "libddp_cuda.so"
        built = pathlib.Path(ARGUMENTS[0], "lib", module.name).exists()
        self.assertEqual(module.exists(), built)
        if not built:  # configured without it: there is nothing to open
            return
        # It fails then, since the driver only pretends to have a device.
        environment = {**os.environ, "LD_DEBUG": "files", "CUDA_VISIBLE_DEVICES": "0",
                       "LD_LIBRARY_PATH": str(pathlib.Path(ARGUMENTS[0]).resolve() / "tests" / "fake_driver")}
        result = run([self.program, *WORK], cwd=self.folder, env=environment)
        opened = re.findall(r"calling init: (\S+)", result.stderr)
        self.assertIn(str(module), opened)
        self.assertIn("libtorch_cuda.so", [pathlib.Path(path).name for path in opened])


if __name__ == "__main__":
    ARGUMENTS = [sys.argv.pop(1) for _ in range(3)] + [" ".join(sys.argv[1:])]  # CMake drops flags that are none
    del sys.argv[1:]
    unittest.main()
