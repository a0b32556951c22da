#!/usr/bin/env python3
"""A run on the CPU loads no library of CUDA, NCCL or MPI, even if they are installed. The dynamic linker lists what each process loads.

usage: loaded_libraries_test.py BUILD_DIR Cpu|Mpi|Cuda
"""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import Scratch  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
# Not libcudart, because PyTorch's libtorch_cpu.so itself is linked to it.
UNWANTED = re.compile("lib(ddp_cuda|ddp_mpi|torch_cuda|c10_cuda|cuda|nvidia|nccl|cudnn|cublas|mpi|open-rte|open-pal|pmix)[^a-z]")


class Loaded(Scratch):
    def load(self, line, succeeds=True):
        """Runs a program with a fake CUDA driver. @return the names of the libraries, those that are unwanted, and the number of processes"""
        self.setUp()  # a folder for each run
        done = self.run_here(*f"{BUILD}/bin/{line}".split(), LD_DEBUG="files", LD_DEBUG_OUTPUT=f"{self.folder}/loaded", CUDA_VISIBLE_DEVICES="0",
                             LD_LIBRARY_PATH=f"{BUILD}/tests/fake_cuda")
        self.assertEqual(done.returncode == 0, succeeds, done.stderr)
        processes = [path.read_text() for path in self.folder.glob("loaded.*")]
        names = {pathlib.Path(path).name for text in processes for path in re.findall(r"calling init: (\S+)", text)}
        return names, [name for name in names if UNWANTED.match(name)], len(processes)


class Cpu(Loaded):
    def test_nothing_of_cuda_nccl_or_mpi(self):
        for line in ("01_single_gpu 1 1 --device cpu", "02_data_parallel 1 1 --device cpu --nprocs 2", "03_ddp_spawn 1 1 --device cpu --nprocs 2",
                     "03_ddp_spawn_fused 1 1 --device cpu --nprocs 2 --backend gloo", "04_ddp_launcher 1 1 --device cpu",
                     # Not with mpirun, which bench would ask for its version.
                     "bench --dry-run --device cpu --stages 01_single_gpu --launchers spawn --models T", "ddp-env"):
            with self.subTest(line):
                names, unwanted, processes = self.load(line)
                self.assertEqual(unwanted, [])
                self.assertEqual("libtorch_cpu.so" in names, not line.startswith("bench"))  # the run was seen, with all its processes
                self.assertGreaterEqual(processes, 3 if line.startswith("03_") else 1)

    def test_another_libtorch_is_not_taken(self):
        for name in ("libtorch_cpu.so", "libc10.so", "libtorch_cuda.so"):
            self.write(name, "of another version")
        for program in ("01_single_gpu", "03_ddp_spawn", "05_multinode", "bench_micro", "collectives"):
            with self.subTest(program):
                self.assertEqual(self.run_here(BUILD / "bin" / program, "--version", LD_LIBRARY_PATH=str(self.folder)).returncode, 0)


class Mpi(Loaded):
    """The reverse, so that the test is known to see these libraries."""

    def test_it_is_loaded(self):
        names, unwanted, _ = self.load("04_ddp_launcher 1 1 --device cpu --backend mpi")
        self.assertIn("libddp_mpi.so", names)
        self.assertGreater(len(unwanted), 1)


class Cuda(Loaded):
    def test_it_is_loaded(self):
        names, unwanted, _ = self.load("01_single_gpu 1 1 --device cuda", succeeds=False)  # it fails later, because the device is fake
        self.assertLessEqual({"libddp_cuda.so", "libtorch_cuda.so"}, names)
        self.assertGreater(len(unwanted), 2)


if __name__ == "__main__":
    unittest.main()
