#!/usr/bin/env python3
"""--backend hierarchical on two hosts with a network between them: weights, repeatability, the choice of auto, and failures.

Usage: hierarchical_test.py BUILD_FOLDER   (as root; see tests/clusters/namespaces.py)
"""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "clusters"))
from namespaces import enter, make_hosts  # noqa: E402

PORT = 29500
WORKLOAD = ["3", "3", "--dataset", "digits", "--global-batch", "48", "--device", "cpu"]


class Job:
    """Ranks of one program, some on each host, each with a file for what it says."""

    def __init__(self, hosts, per_host, program, *arguments, variables=""):
        """@param variables of the last rank"""
        self.folder = pathlib.Path("/var/tmp/job")  # /tmp is the hosts' own
        subprocess.run(["rm", "-rf", self.folder], check=True)
        self.folder.mkdir()
        self.world_size = sum(per_host)
        self.hosts = []
        command = shlex.join([str(BIN / program), *arguments])
        first = 0
        for node, (host, ranks) in enumerate(zip(hosts, per_host)):
            lines = [f"cd {self.folder}",
                     f"export WORLD_SIZE={self.world_size} LOCAL_WORLD_SIZE={ranks} GROUP_RANK={node} GROUP_WORLD_SIZE={len(hosts)}",
                     f"export MASTER_ADDR={hosts[0].name} MASTER_PORT={PORT}"]
            for local in range(ranks):
                rank = first + local
                own = variables if rank == self.world_size - 1 else ""
                lines.append(f"(RANK={rank} LOCAL_RANK={local} {own} {command} >out.{rank} 2>err.{rank} & echo $! >pid.{rank}; "
                             f"wait $!; echo $? >code.{rank}) &")
            first += ranks
            self.hosts.append(subprocess.Popen(host.command("\n".join([*lines, "wait"])), stdin=subprocess.DEVNULL))

    def wait(self, seconds=120):
        """The exit codes, by rank."""
        deadline = time.monotonic() + seconds
        for host in self.hosts:
            host.wait(timeout=max(1, deadline - time.monotonic()))
        return [int(self.read("code", rank)) for rank in range(self.world_size)]

    def read(self, what, rank):
        path = self.folder / f"{what}.{rank}"
        return path.read_text() if path.exists() else ""

    def wait_for(self, rank, text, seconds=60):
        deadline = time.monotonic() + seconds
        while text not in self.read("out", rank):
            if time.monotonic() > deadline:
                raise AssertionError(f"rank {rank} never said {text!r}: {self.read('out', rank)}{self.read('err', rank)}")
            time.sleep(0.05)

    def result(self):
        """(moved, digest, backend) of a job that must succeed."""
        codes = self.wait()
        errors = "".join(self.read("err", rank) for rank in range(self.world_size))
        if any(codes) or errors:
            raise AssertionError(f"exit codes {codes}\n{errors}")
        last = re.search(r"^moved (\S+) .*digest ([0-9a-f]{16}) ", self.read("out", 0), re.MULTILINE)
        summary = json.loads((self.folder / "m.jsonl").read_text().splitlines()[-1])["summary"]
        return float(last[1]), last[2], summary["backend"]


class TwoHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = make_hosts(["n1", "n2"], "controller")
        # Nobody waits for the machine's name server, which these hosts do not reach.
        subprocess.run(["mount", "--bind", "/dev/null", "/etc/resolv.conf"], check=True)
        alone = subprocess.run([BIN / "01_single_gpu", *WORKLOAD, "--snapshot", "/var/tmp/alone.safetensors"],
                               check=True, capture_output=True, text=True).stdout
        cls.moved = float(re.search(r"^moved (\S+) ", alone, re.MULTILINE)[1])

    def run_job(self, backend, per_host, program="05_multinode"):
        job = Job(self.hosts, per_host, program, *WORKLOAD, "--backend", backend, "--metrics", "m.jsonl", "--quiet")
        moved, digest, used = job.result()
        self.assertLessEqual(abs(moved - self.moved), 1e-4 * self.moved, (backend, per_host))
        return digest, used

    def test_weights_and_bits(self):
        for per_host in [(1, 1), (2, 1), (2, 2), (3, 3), (4, 4)]:
            with self.subTest(per_host=per_host):
                digest, used = self.run_job("hierarchical", per_host)
                self.assertEqual(used, "hierarchical")
                self.assertEqual(self.run_job("hierarchical", per_host)[0], digest)
                if per_host == (1, 1):
                    self.assertEqual(self.run_job("gloo", per_host)[0], digest)
        self.assertEqual(self.run_job("hierarchical", (2, 2), "04_ddp_launcher")[0],
                         self.run_job("hierarchical", (2, 2))[0])

    def test_auto(self):
        self.assertEqual(self.run_job("auto", (2, 2))[1], "hierarchical")
        self.assertEqual(self.run_job("auto", (1, 1))[1], "gloo")

    def test_killed(self):
        """Whoever dies: its host names it, and the other host ends too."""
        for victim, neighbour in [(3, 2), (2, 3), (1, 0)]:
            with self.subTest(victim=victim):
                job = Job(self.hosts, (2, 2), "05_multinode", "1000000", "1000000", "--device", "cpu", "--backend", "hierarchical",
                          "--timeout", "20")
                job.wait_for(victim, "Epoch 3 ")
                pid = int(job.read("pid", victim))
                start = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                codes = job.wait(30)
                self.assertLess(time.monotonic() - start, 10)
                self.assertEqual(codes[victim], 128 + signal.SIGKILL)
                self.assertEqual([code for rank, code in enumerate(codes) if rank != victim], [1, 1, 1])
                self.assertIn(f"error: [rank {neighbour}] rank {victim} (pid {pid}) died during", job.read("err", neighbour))
                for rank in range(4):
                    self.assertEqual(job.read("err", rank).count("\n"), 0 if rank == victim else 1, job.read("err", rank))

    def test_a_connection_that_breaks_under_a_message(self):
        """Gloo forgets it, and would wait for --timeout: see Note [Lost connections] in common/backends/gloo.cpp."""
        said = []
        for message in range(501, 505):
            job = Job(self.hosts, (2, 1), "05_multinode", "1000000", "1000000", "--device", "cpu", "--backend", "hierarchical", "--timeout", "60",
                      variables=f"LD_PRELOAD={BIN.parent / 'lib/libcut_connection.so'} DDP_CUT_AT={message}")
            start = time.monotonic()
            self.assertEqual(job.wait(), [1, 1, 1])
            self.assertLess(time.monotonic() - start, 30)
            said.append(job.read("err", 2))
        # Else Gloo tells it: the peer's message came after the connection's end.
        told = ("05_multinode: error: [rank 2] --backend hierarchical: all_reduce between the hosts: "
                "a connection to another rank broke, expected it to stay until the end; collective ")
        self.assertTrue(any(text.startswith(told) for text in said), said)

    def test_a_slow_network(self):
        """Weights and gradients that take longer than --timeout from host to host go piece by piece."""
        workload = ["1", "1", "--layers", "784,4096,1024,10", "--dataset-size", "64", "--device", "cpu"]
        alone = subprocess.run([BIN / "01_single_gpu", *workload, "--global-batch", "128"], cwd="/var/tmp", check=True, capture_output=True,
                               text=True).stdout
        self.hosts[0].slow_down("latency", "100ms")
        self.addCleanup(self.hosts[0].speed_up)
        start = time.monotonic()
        moved, _, _ = Job(self.hosts, (2, 2), "05_multinode", *workload, "--backend", "hierarchical", "--timeout", "4",
                          "--metrics", "m.jsonl").result()
        self.assertGreater(time.monotonic() - start, 8, "the network was not slow")
        self.assertLessEqual(abs(moved - float(re.search(r"^moved (\S+) ", alone, re.MULTILINE)[1])), 1e-4 * moved)


if __name__ == "__main__":
    enter("controller")
    BIN = pathlib.Path(sys.argv[1]).resolve() / "bin"
    successful = unittest.main(argv=[sys.argv[0], "--verbose", *sys.argv[2:]], exit=False).result.wasSuccessful()
    sys.exit(0 if successful else 1)
