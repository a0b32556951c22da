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
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import Scratch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ["2", "2113"]  # 34 steps per epoch; in the last step one rank has no sample


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=False, text=True, capture_output=True, timeout=240, **options)


class YourModel(Scratch):
    @classmethod
    def setUpClass(cls):
        build_dir, cmake, _, flags = ARGUMENTS
        # Always the same folder, so that ccache finds earlier objects.
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
            result = run(*command)
            if result.returncode != 0:
                raise AssertionError(f"{command}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")

    def torchrun(self, *command):
        return run(ARGUMENTS[2], "--standalone", "--nproc-per-node=2", "--no-python", *command, cwd=self.folder)

    def moved_and_losses(self, result, ranks):
        self.assertEqual(result.returncode, 0, result.stderr)
        moved = dict(re.findall(r"^\[rank (\d+)\] moved (\S+) \|", result.stdout, re.MULTILINE))
        self.assertEqual(sorted(moved), [str(rank) for rank in range(ranks)])
        self.assertEqual(len(set(moved.values())), 1)
        return float(moved["0"]), [float(loss) for loss in re.findall(r"^epoch \d+ \| loss (\S+)$", result.stdout, re.MULTILINE)]

    def test_two_ranks_end_on_the_weights_of_one(self):
        moved, losses = self.moved_and_losses(self.torchrun(self.program, *WORK), 2)
        self.assertEqual(os.listdir(self.folder), ["your_model.pt"])
        alone_moved, alone_losses = self.moved_and_losses(run(self.program, *WORK, cwd=self.folder), 1)
        self.assertAlmostEqual(moved, alone_moved, delta=1e-4 * alone_moved)
        self.assertGreater(moved, 0.1)
        for first, last in losses, alone_losses:
            self.assertLess(last, 0.8 * first)

    def test_the_first_commands_of_the_page_print_the_same_numbers(self):
        self.assertIn("/your_model 1 1024\n", (ROOT / "docs/guides/your_model.md").read_text(encoding="utf-8"))
        results = run(self.program, "1", "1024", cwd=self.folder), self.torchrun(self.program, "1", "1024")
        alone, two = (re.findall(r"^epoch 0 .* [\d.]+$|^.rank 0. moved [\d.]+ ", result.stdout, re.MULTILINE) for result in results)
        self.assertEqual(len(alone), 2)
        self.assertEqual(alone, two)

    def test_ranks_with_other_settings_are_refused(self):
        result = self.torchrun("sh", "-c", f"exec {self.program} 1 $((256 + RANK))")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn('settings: rank 1 has "samples 257", rank 0 has "samples 256"', result.stderr)

    def test_the_installation_has_a_gpus_module_if_the_build_has(self):
        module = "libddp_cuda.so"
        self.assertEqual((self.prefix / "lib" / module).exists(), pathlib.Path(ARGUMENTS[0], "lib", module).exists())


if __name__ == "__main__":
    ARGUMENTS = [sys.argv.pop(1) for _ in range(3)] + [" ".join(sys.argv[1:])]  # CMake drops empty flags
    del sys.argv[1:]
    unittest.main()
