#!/usr/bin/env python3
"""Two users of one machine: what the second can see of the first one's job, join, or have in its way.

usage: two_users_test.py BUILD_DIR [TEST...]     as root, who is the first user; `nobody` is the second
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "clusters"))
from stages import WORKLOAD, last_line, spawned  # noqa: E402

BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve() / "bin"
NOBODY = 65534
SECONDS = 120
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MARK = "DDP_TEST_MARK"
KEY = "0123456789abcdef0123456789abcdef"


def as_nobody(code):
    """What a Python program of the second user prints."""
    return subprocess.run(["/usr/bin/python3", "-c", code], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True,
                          text=True, timeout=SECONDS, check=True).stdout


def listening():
    """Socket inodes of all that listens on TCP."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {fields[9] for fields in lines if fields[3] == "0A"}


class TwoUsers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.folder.chmod(0o1777)  # as /tmp is

    def start(self, *command, **variables):
        program = subprocess.Popen([str(word) for word in command], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True,
                                   env=os.environ | MPI | {MARK: self.id(), "TMPDIR": str(self.folder)} | variables)
        self.addCleanup(self.end, program)
        return program

    @staticmethod
    def end(program):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()

    def ranks(self):
        """Process ids and variables of this test's ranks."""
        for process in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                variables = dict(item.split("=", 1) for item in (process / "environ").read_text().split("\0") if "=" in item)
                named = "RANK" in variables or "OMPI_COMM_WORLD_RANK" in variables
                if named and variables.get(MARK) == self.id() and os.readlink(process / "exe").startswith(str(BIN)):
                    yield process, variables

    def train_until_an_epoch(self, *command):
        program = self.start(*command)
        for line in program.stdout:
            if "Epoch" in line:
                return program
        self.fail(program.stderr.read())

    def check_nothing_to_join(self, store):
        """@param store what the descriptor of each rank's store leads to"""
        ranks = list(self.ranks())
        self.assertEqual(len(ranks), 2)
        for process, variables in ranks:
            descriptors = {entry.name: os.readlink(entry) for entry in (process / "fd").iterdir() if entry.is_symlink()}
            sockets = set(re.findall(r"socket:\[(\d+)\]", " ".join(descriptors.values())))
            self.assertEqual(sockets & listening(), set(), "a rank on one host listens on a port")
            stores = [name for name, target in descriptors.items() if target.startswith(store)]
            self.assertTrue(stores, descriptors)
            if "DDP_STORE_FD" in variables:
                self.assertIn(variables["DDP_STORE_FD"], stores)
            for name in [*stores, *(name for name, target in descriptors.items() if "memfd:ddp" in target)]:
                tried = as_nobody(f"try: open('{process}/fd/{name}', 'r+b'); print('opened')\nexcept PermissionError: print('refused')")
                self.assertEqual(tried.strip(), "refused")

    def test_ranks_that_spawn_started_listen_nowhere(self):
        self.train_until_an_epoch(BIN / "03_ddp_spawn", 100000, *WORKLOAD[1:], "--nprocs", "2", "--device", "cpu")
        self.check_nothing_to_join("/memfd:ddp")

    def test_ranks_that_mpirun_started_listen_nowhere(self):
        command = ["mpirun", "--oversubscribe", "-np", "2", BIN / "04_ddp_launcher", "--device", "cpu"]
        self.train_until_an_epoch(*command, 100000, *WORKLOAD[1:])
        folders = list(self.folder.rglob("ddp-store-*"))
        self.assertEqual(len(folders), 1)
        self.assertEqual(folders[0].stat().st_mode & 0o7777, 0o700)
        self.assertEqual((folders[0] / "store").stat().st_mode & 0o7777, 0o600)
        self.check_nothing_to_join(str(folders[0] / "store"))

    def test_nothing_is_left_of_the_place_to_meet(self):
        variables = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job",
                     "PMIX_SERVER_TMPDIR": str(self.folder)}
        ranks = [self.start(BIN / "04_ddp_launcher", *WORKLOAD, "--device", "cpu", OMPI_COMM_WORLD_RANK=rank,
                            OMPI_COMM_WORLD_LOCAL_RANK=rank, **variables) for rank in ("0", "1")]
        self.assertEqual([rank.wait(SECONDS) for rank in ranks], [0, 0])
        self.assertEqual(list(self.folder.glob("ddp-*")), [])

    def test_a_folder_in_the_way_is_refused(self):
        way = self.folder / f"ddp-store-{os.geteuid()}-job"
        as_nobody(f"import os; os.mkdir('{way}', 0o777); os.chmod('{way}', 0o777)")
        variables = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job",
                     "PMIX_SERVER_TMPDIR": str(self.folder)}
        for rank in ("0", "1"):
            program = self.start(BIN / "04_ddp_launcher", *WORKLOAD, "--device", "cpu", OMPI_COMM_WORLD_RANK=rank,
                                 OMPI_COMM_WORLD_LOCAL_RANK=rank, **variables)
            out, err = program.communicate(timeout=SECONDS)
            self.assertEqual((program.returncode, out), (2, ""), err)
            self.assertEqual(err, f"04_ddp_launcher: error: [rank {rank}] {way}: got one of user {NOBODY} with mode 777, expected a folder "
                                  "of user 0 with mode 700 on a file system with locks; TMPDIR names another place\n")
        self.assertEqual(list(way.iterdir()), [])

    def test_a_stranger_at_the_port_learns_nothing_and_changes_nothing(self):
        """Ranks started by hand at a TCP port, with a key; the stranger knows all but that, and comes first as rank 1."""
        held = socket.socket()  # not listening, and reused: nobody else is given its port
        self.addCleanup(held.close)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        port = held.getsockname()[1]
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        command = [BIN / "04_ddp_launcher", *WORKLOAD, "--device", "cpu", "--backend", "gloo"]
        first = self.start(*command, RANK="0", DDP_STORE_KEY=KEY, **place)
        stranger = self.start(*command, "--lr", "0.123", "--timeout", "3", RANK="1", **place)
        out, err = stranger.communicate(timeout=SECONDS)
        self.assertEqual((stranger.returncode, out), (75, ""), err)
        self.assertIn("rendezvous lacks rank 0 of world size 2", err)
        wrong = self.start(*command, "--timeout", "3", RANK="1", DDP_STORE_KEY="f" + KEY[1:], **place)
        self.assertEqual(wrong.wait(SECONDS), 75)
        second = self.start(*command, RANK="1", DDP_STORE_KEY=KEY, **place)
        out, err = first.communicate(timeout=SECONDS)
        self.assertEqual((first.returncode, second.wait(SECONDS), err), (0, 0, ""))
        self.assertEqual(last_line(out), spawned(BIN, 2))


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit(f"two_users_test.py: user id {os.geteuid()}, expected 0: only root can be two users")
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
