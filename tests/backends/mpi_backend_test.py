#!/usr/bin/env python3
"""The MPI backend: real ranks under mpirun.

usage: mpi_backend_test.py BUILD_DIR
"""

import pathlib
import re
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import Scratch  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
TEST = BUILD / "tests/shm_backend_test"


class MpiBackend(Scratch):
    def run_here(self, *command, **variables):
        return super().run_here(*command, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=str(self.folder), **variables)

    def mpirun(self, ranks, *program, **variables):
        return self.run_here("mpirun", "--oversubscribe", "-np", ranks, *program, **variables)

    def test_which_launches_are_an_mpi_world(self):
        one_of_two = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
        for launcher, rank, ranks, variables, refusal in (
                ("mpirun", 1, 2, one_of_two, ""), ("spawn", 0, 2, one_of_two, "spawn started"), ("srun", 1, 2, {"PMIX_RANK": "1"}, ""),
                ("none", 0, 1, {}, ""), ("spawn", 1, 2, {}, "spawn started the 2 ranks, expected mpirun"),
                ("torchrun", 0, 3, {}, "mpirun -n 3 build/bin/04_ddp_launcher"), ("srun", 1, 2, {"PMIX_RANK": "0"}, "srun started the 2 ranks"),
                ("spawn", 1, 2, {"OMPI_COMM_WORLD_SIZE": "1"}, "spawn started")):
            with self.subTest(launcher=launcher, variables=variables):
                done = self.run_here(TEST, "[mpi_launch]", LAUNCHER=launcher, LAUNCH_RANK=str(rank), LAUNCH_RANKS=str(ranks), **variables)
                said = re.search("^refusal: (.*)", done.stdout, re.MULTILINE)[1]
                self.assertIn(refusal, said)
                self.assertEqual(said == "", refusal == "", said)

    def test_every_collective_of_every_type_is_right_at_every_world_size(self):
        for ranks in 1, 2, 3:
            done = self.mpirun(ranks, TEST, "[mpi]", WHAT="collectives")
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            self.assertGreaterEqual(int(re.search(r"(\d+) results are right", done.stdout)[1]), 150 * ranks)

    def test_a_rank_that_is_killed_or_leaves_ends_the_others(self):
        for what, said in ("die", "signal 9"), ("leave", 'REQUIRE( what != "leave" )'):
            done = self.mpirun(3, TEST, "[mpi]", WHAT=what)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stdout + done.stderr)

    def test_two_ranks_of_a_stage_train_to_the_bits_of_shm_in_every_run(self):
        digests = set()
        for program, backend in ("05_multinode", "shm"), ("05_multinode", "mpi"), ("05_multinode", "mpi"), ("04_ddp_launcher", "mpi"):
            done = self.mpirun(2, BUILD / "bin" / program, 2, 2, "--global-batch", 48, "--dataset", "digits", "--quiet", "--backend", backend)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            digests.add(re.search("digest ([0-9a-f]{16}) ", done.stdout)[1])
        self.assertEqual(len(digests), 1, digests)

    def test_a_build_without_mpi_says_so(self):
        (self.folder / "bin").mkdir()  # programs look for modules in lib beside their own folder
        program = shutil.copy(BUILD / "bin/04_ddp_launcher", self.folder / "bin")
        done = self.run_here(program, 1, 1, "--device", "cpu", "--backend", "mpi")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--backend mpi: this build has no lib/libddp_mpi.so, expected", done.stderr)


if __name__ == "__main__":
    unittest.main()
