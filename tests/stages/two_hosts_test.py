#!/usr/bin/env python3
"""torchrun and mpirun over two hosts, each a network namespace with its own address, name, /tmp and /dev/shm; by hand, without a
batch system, over IPv4 and over IPv6.

usage: two_hosts_test.py BUILD_DIR [TEST...]     as root; see tests/clusters/namespaces.py
"""

import pathlib
import re
import shlex
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters import namespaces, stages  # noqa: E402
from clusters.namespaces import run  # noqa: E402
from clusters.stages import WORKLOAD, agrees, last_line  # noqa: E402

BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve() / "bin"
SHARED = pathlib.Path("/var/tmp/home")  # shared by both hosts, like home directories
RUN_SECONDS = 180

hosts = []
expected = {}


def start(host, *words, **variables):
    """Starts a command on a host. Its output is read at the wait."""
    command = host.command("exec " + shlex.join(map(str, words)))
    return subprocess.Popen(command, cwd=SHARED, env=stages.own_variables() | variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(*programs):
    """Waits for all commands. @return their exit codes and outputs"""
    try:
        texts = [program.communicate(timeout=RUN_SECONDS) for program in programs]
    finally:
        for program in programs:
            program.kill()
    return [program.returncode for program in programs], "".join(out for out, _ in texts), "".join(err for _, err in texts)


ESTABLISHED, LISTENING = "01", "0A"


def sockets(host, state, *tables):
    """Own addresses and ports of the host's sockets in a state, in the kernel's form."""
    lines = run("nsenter", f"--net=/run/netns/{host.name}", "cat", *(f"/proc/net/{table}" for table in tables)).splitlines()
    return [line.split()[1] for line in lines if line.split()[3] == state]


def with_names(host, lines):
    """Beginning of a command that gets an /etc/hosts of its own with these lines, if there are any."""
    if not lines:
        return []
    file = SHARED / f"hosts-{host.name}"
    file.write_text(namespaces.HOSTS + lines)
    return ["bash", "-c", f'mount --bind {file} /etc/hosts; exec "$@"', "bash"]


class TwoHosts(unittest.TestCase):
    def check(self, codes, out, err, ranks):
        """Checks that all ranks of both hosts are in one world, and end on the weights of 03_ddp_spawn."""
        self.assertEqual(codes, [0] * len(codes), out + err)
        for rank in range(ranks):
            self.assertEqual(len(re.findall(rf"^\[CPU{rank}\] Epoch ", out, re.MULTILINE)), int(WORKLOAD[0]), out + err)
        moved, digest = last_line(out)
        if ranks == 2:
            self.assertEqual(digest, expected[2][1], out)
        self.assertTrue(agrees(moved, expected[ranks][0]), (moved, expected[ranks]))
        for host in hosts:
            self.assertEqual(sockets(host, LISTENING, "tcp", "tcp6"), [])

    def ranks(self, *arguments, **variables):
        """Ranks started by hand, one on each host, over Gloo."""
        return [start(host, BIN / "05_multinode", *arguments, "--backend", "gloo", RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0",
                      LOCAL_WORLD_SIZE="1", MASTER_ADDR=hosts[0].ipv4, MASTER_PORT="29621", **variables) for rank, host in enumerate(hosts)]


class Torchrun(TwoHosts):
    def train(self, ranks, *options):
        agents = [start(host, stages.torchrun(), "--nnodes=2", f"--nproc-per-node={ranks // 2}", *options,
                        *([f"--node-rank={number}"] if "--rdzv-backend=c10d" not in options else []), "--no-python", BIN / "05_multinode", *WORKLOAD)
                  for number, host in enumerate(hosts)]
        self.check(*finish(*agents), ranks)

    def test_c10d_rendezvous(self):
        self.train(4, "--rdzv-backend=c10d", "--rdzv-id=four", "--rdzv-endpoint=host1:29601")
        self.train(2, "--rdzv-backend=c10d", "--rdzv-id=six", f"--rdzv-endpoint=[{hosts[0].ipv6}]:29603")

    def test_static_rendezvous(self):
        self.train(2, f"--master-addr={hosts[0].ipv4}", "--master-port=29604")
        self.train(2, f"--master-addr={hosts[0].ipv6}", "--master-port=29605")


class Mpirun(TwoHosts):
    """mpirun on the first host. It enters the other host by a script instead of ssh."""

    @classmethod
    def setUpClass(cls):
        cls.agent = SHARED / "agent"
        enter = shlex.join(hosts[1].command("")[:-1])
        # Its own /etc/hosts again: it starts from the other host's.
        setup = shlex.quote(hosts[1].command("mount --bind /run/hosts /etc/hosts; ")[-1])
        # `agent HOST COMMAND...`: like ssh, it runs all words together as a shell command there.
        cls.agent.write_text(f"#!/bin/bash\n[[ $1 == {hosts[1].name} ]] || {{ echo \"agent: no host $1\" >&2; exit 1; }}\nshift\n"
                             f"exec {enter} {setup}\"$*\"\n")
        cls.agent.chmod(0o755)

    def mpirun(self, ranks, address, *options):
        slots = ranks // 2
        return finish(start(hosts[0], "mpirun", "--host", ",".join(f"{host.name}:{slots}" for host in hosts), "-np", ranks,
                            "--map-by", "slot", "--bind-to", "none", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", self.agent,
                            *options, "-x", "MASTER_ADDR", "-x", "MASTER_PORT", BIN / "05_multinode", *WORKLOAD,
                            MASTER_ADDR=address, MASTER_PORT="29611"))

    def test_rendezvous(self):
        self.check(*self.mpirun(4, hosts[0].ipv4), 4)
        self.check(*self.mpirun(2, hosts[0].ipv6), 2)
        self.check(*self.mpirun(2, f"[{hosts[0].ipv6}]"), 2)

    def test_ranks_that_go_round(self):
        self.check(*self.mpirun(4, "host1", "--rank-by", "node"), 4)

    def test_no_ipv4_at_all(self):
        """Open MPI's daemons also use IPv6, which needs an option."""
        for host in hosts:
            host.remove_address(f"{host.ipv4}/24")
            self.addCleanup(host.add_address, f"{host.ipv4}/24")
        self.check(*self.mpirun(2, hosts[0].ipv6, "--mca", "oob_tcp_disable_ipv6_family", "0"), 2)


class NamedNetwork(TwoHosts):
    """Ranks by hand, one on each host, with two networks between the hosts."""

    def setUp(self):
        for host in hosts:
            host.add_interface("fast0", host.ipv4.replace("10.77", "10.79") + "/24")
            self.addCleanup(host.remove_interface, "fast0")

    def addresses_in_use(self, **variables):
        """Addresses of Gloo's connections at host2 during training. The store's sockets are IPv6, in another table."""
        ranks = self.ranks("1000000", "1000000", **variables)
        try:
            self.assertTrue(any("Epoch 3 " in line for line in ranks[0].stdout), "they never trained")
            established = sockets(hosts[1], ESTABLISHED, "tcp")
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
        return {".".join(str(int(address[at:at + 2], 16)) for at in (6, 4, 2, 0)) for address in established}

    def test_gloo_socket_ifname(self):
        self.assertEqual(self.addresses_in_use(), {hosts[1].ipv4})
        self.assertEqual(self.addresses_in_use(GLOO_SOCKET_IFNAME="fast0,lo"), {hosts[1].ipv4.replace("10.77", "10.79")})
        self.check(*finish(*self.ranks(*WORKLOAD, GLOO_SOCKET_IFNAME="fast0")), 2)


class Addresses(TwoHosts):
    """Names and addresses as machines have them: what the others connect to is not always what rank 0 finds for it."""

    def train(self, address, names=("", ""), timeout="20", **variables):
        """Ranks by hand. @param address MASTER_ADDR of each rank @param names lines of each host's /etc/hosts, if it has its own"""
        return finish(*[
            start(host, *with_names(host, names[rank]), BIN / "05_multinode", *WORKLOAD, "--timeout", timeout,
                  **{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": address[rank], "MASTER_PORT": "29641"} | variables)
            for rank, host in enumerate(hosts)])

    def test_kubeflow(self):
        """The master's own address is localhost, and no pod has a LOCAL_RANK."""
        self.check(*self.train(("localhost", hosts[0].ipv4), KUBERNETES_SERVICE_HOST="10.0.0.1"), 2)

    def test_own_name_is_loopback(self):
        """As in Debian's /etc/hosts."""
        names = ("127.0.1.1 host1\n", "")
        self.check(*self.train(("host1", "host1"), names, LOCAL_RANK="0"), 2)
        self.check(*self.train(("host1", "host1"), names, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1"), 2)
        self.check(*self.train(("host1", "host1"), (names[0], f"{hosts[0].ipv6} host1\n"), LOCAL_RANK="0"), 2)
        # Of two ranks Gloo lets the one with the higher address connect. Here it must not find loopback.
        for number, host in enumerate(hosts):
            host.add_interface("fast0", f"192.168.79.{number + 1}/24")
            self.addCleanup(host.remove_interface, "fast0")
        self.check(*self.train(("host1", "host1"), (names[0], "192.168.79.1 host1\n"), LOCAL_RANK="0"), 2)

    def test_worker_without_ipv6(self):
        """The master has both, or IPv4 only as loopback beside its name."""
        hosts[1].remove_address(f"{hosts[1].ipv6}/64")
        self.addCleanup(hosts[1].add_address, f"{hosts[1].ipv6}/64")
        self.check(*self.train(("host1", "host1"), LOCAL_RANK="0"), 2)
        self.check(*self.train(("host1", "host1"), (f"{hosts[0].ipv6} host1\n127.0.1.1 host1\n", ""), LOCAL_RANK="0"), 2)
        condor = [start(host, *with_names(host, f"{hosts[0].ipv6} host1\n{hosts[0].ipv4} host1\n"), BIN / "05_multinode", *WORKLOAD,
                        _CONDOR_PROCNO=str(rank), _CONDOR_NPROCS="4", _CONDOR_JOB_IWD=str(SHARED), DDP_JOB_ID="7")
                  for rank, host in enumerate(hosts * 2)]
        self.check(*finish(*condor), 4)
        codes, _, err = self.train((hosts[0].ipv6,) * 2, timeout="4", LOCAL_RANK="0")
        self.assertEqual(codes, [75, 2], err)
        self.assertIn(f"no route leads from this host to {hosts[0].ipv6} (", err)

    def test_nobodys_address(self):
        """It cannot heal, so it is no code that asks for another try; and the line says which address it is."""
        codes, _, err = self.train(("host9", "host9"), ("10.77.0.99 host9\n", "127.0.1.1 host9\n"), timeout="4", LOCAL_RANK="0")
        self.assertEqual(codes[0], 2, err)
        self.assertIn("MASTER_ADDR: got host9 (10.77.0.99), which does not lead to this host", err)
        self.assertIn(codes[1], (2, 75), err)
        self.assertIn("no store at host9:29641 (127.0.1.1) within 4 s, expected", err)
        codes, _, err = self.train(("localhost", "localhost"), timeout="4", LOCAL_RANK="0")
        self.assertEqual(codes, [75, 75], err)  # rank 0 could come later, and it could be here
        self.assertIn("(Connection refused; this is an address of this host, but rank 0 may be on another)", err)

    def test_one_node_or_several(self):
        """Only rank 0 takes the address for that of a single node, and listens at loopback alone."""
        codes, _, err = self.train(("localhost", hosts[0].ipv4), timeout="4", LOCAL_RANK="0")
        self.assertEqual(codes, [75, 75], err)
        self.assertIn(f"no store at {hosts[0].ipv4}:29641 within 4 s", err)


class FaultyNetwork(TwoHosts):
    """Ranks by hand, with a network that is cut."""

    def test_cut(self):
        """Each side names the rank on the other side."""
        ranks = self.ranks("1000000", "1000000", "--timeout", "4")
        self.assertTrue(any("Epoch 3 " in line for line in ranks[0].stdout), "they never trained")
        begin = time.monotonic()
        run("ip", "-n", hosts[1].name, "link", "set", "eth0", "down")
        self.addCleanup(hosts[1].add_address, f"{hosts[1].ipv6}/64")  # lost with the link
        self.addCleanup(run, "ip", "-n", hosts[1].name, "link", "set", "eth0", "up")
        codes, _, err = finish(*ranks)
        self.assertLess(time.monotonic() - begin, 4 + 2 + 8, "--timeout, what is promised, and what a busy machine takes")
        self.assertEqual(codes, [1, 1], err)
        for rank in range(2):
            self.assertRegex(err, rf"\[rank {rank}\] rank {1 - rank} did not arrive within 4 s, expected all 2 ranks: .+, called (by \w+ )?at \S+:\d+")


if __name__ == "__main__":
    namespaces.enter("controller")
    SHARED.mkdir()
    expected = {ranks: stages.spawned(BIN, ranks) for ranks in (2, 4)}
    hosts = namespaces.make_hosts(("host1", "host2"), "controller")
    stages.need_launchers()
    stages.run_tests()
