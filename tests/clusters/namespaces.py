"""Namespaces for tests that need several hosts on one machine.

A test calls enter() first. From then on it runs in a process, mount, network, host name and IPC namespace of its own: it can make
interfaces, mounts and daemons as it likes without touching the machine's. The kernel ends all of it with the first process of the
namespace, so nothing is left, however the test ends, and two tests at the same time never meet.
"""

import os
import pathlib
import shlex
import subprocess
import sys

_MARK = "DDP_TEST_NAMESPACE"
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def _own(folder):
    """Shell command that gives a mount namespace an empty `folder`. If the checkout lies in `folder`, it stays visible."""
    command = f"mount -t tmpfs none {folder}"
    if not CHECKOUT.is_relative_to(folder):
        return command
    checkout = shlex.quote(str(CHECKOUT))
    return f"mount --bind {checkout} /mnt && {command} && mkdir -p {checkout} && mount --move /mnt {checkout}"


def enter(host_name):
    """Starts this script again, inside a namespace. Returns only there."""
    if _MARK not in os.environ or os.getppid() != 1:
        if os.geteuid() != 0:
            sys.exit(f"{sys.argv[0]}: error: user id {os.geteuid()}, expected 0: only root can make network namespaces")
        # The first process is a shell, which collects the daemons' orphans.
        command = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc",
                   "bash", "-c", f'export {_MARK}=1; "$@"; exit $?', "init", sys.executable, *sys.argv]
        os.execvp(command[0], command)
    run("hostname", host_name)
    run("ip", "link", "set", "lo", "up")
    # Only for this test: state, and names of network namespaces.
    for folder in ("/var/tmp", "/run"):
        run("sh", "-c", _own(folder))
    pathlib.Path("/run/netns").mkdir()


def run(*command, **options):
    """Runs a command that must succeed; returns its standard output."""
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "timeout": 60} | options
    result = subprocess.run([str(part) for part in command], **options)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {result.returncode}\n{result.stdout}")
    return result.stdout


class Host:
    """Network namespace behind a bridge. Programs in it have their own host name, /tmp and /dev/shm."""

    def __init__(self, name, number):
        self.name = name
        self.ipv4 = f"10.77.0.{10 + number}"
        self.ipv6 = f"fd77::{10 + number}"
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        self.add_interface("eth0", f"{self.ipv4}/24", f"{self.ipv6}/64")

    def add_interface(self, interface, *addresses):
        """Connects the host with the interfaces of the same name on the other hosts."""
        bridge, outside, inside = f"br-{interface}", f"{self.name}-{interface}", ("ip", "-n", self.name)
        if not pathlib.Path(f"/proc/sys/net/ipv4/conf/{bridge}").exists():
            run("ip", "link", "add", bridge, "type", "bridge")
            run("ip", "link", "set", bridge, "up")
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", interface, "netns", self.name)
        run("ip", "link", "set", outside, "master", bridge, "up")
        run(*inside, "link", "set", interface, "up")
        for address in addresses:
            self.add_address(address, interface)

    def add_address(self, address, interface="eth0"):
        nodad = ["nodad"] if ":" in address else []  # usable at once
        run("ip", "-n", self.name, "addr", "replace", address, "dev", interface, *nodad)

    def remove_address(self, address):
        run("ip", "-n", self.name, "addr", "del", address, "dev", "eth0")

    def remove_interface(self, interface):
        run("ip", "-n", self.name, "link", "del", interface)

    def command(self, program):
        """Command that runs `program`, a shell command, on this host. Not by `ip netns exec`, which hides the cgroups."""
        setup = f"hostname {self.name}; {_own('/tmp')}; {_own('/dev/shm')}; "
        return ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--uts", "bash", "-c", f"{setup} {program}"]


def make_hosts(names, controller):
    """Makes hosts that reach each other and this namespace, by name (IPv4), by NAME-v6 and by address."""
    hosts = [Host(name, number) for number, name in enumerate(names, 1)]
    run("ip", "addr", "add", "10.77.0.1/24", "dev", "br-eth0")
    run("ip", "addr", "add", "fd77::1/64", "dev", "br-eth0", "nodad")
    text = HOSTS + f"10.77.0.1 {controller}\n"
    for host in hosts:
        text += f"{host.ipv4} {host.name}\n{host.ipv6} {host.name} {host.name}-v6\n"
    table = pathlib.Path("/run/hosts")
    table.write_text(text)
    run("mount", "--bind", table, "/etc/hosts")
    return hosts
