"""One process per rank: how they are started, meet, report to each other, and end together."""

import datetime
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from . import processes
from .errors import PeerError, Stopped, TransientError, UsageError, describe

LOOPBACK = "127.0.0.1"
# After the first failure: what the other ranks get to show that theirs came first. The one that was killed closes its
# connections before its parent hears of its death.
SETTLE_S = 0.5
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CudaClock:
    """Marks are events on the stream, so that the host never waits inside an epoch."""

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self, begin, end):
        return begin.elapsed_time(end)

    def synchronize(self):
        torch.cuda.synchronize()


class Group:
    """What TrainingLog needs of several ranks."""

    def __init__(self, rank, world_size, backend, device):
        self.rank, self.world_size, self.backend, self.device = rank, world_size, backend, device

    def sum(self, values):
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def gather(self, table):
        own = torch.from_numpy(np.ascontiguousarray(table)).to(self.device)
        tables = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(tables, own)
        return [table.cpu().numpy() for table in tables]

    def check_same(self, vector):
        """@throws PeerError if this rank's vector is not rank 0's, bit for bit"""
        own = vector.to(self.device)
        first = own.clone()
        dist.broadcast(first, src=0)
        # Bytes, because a NaN equals nothing.
        if not torch.equal(own.view(torch.uint8), first.view(torch.uint8)):
            raise PeerError("the final weights differ from rank 0's, expected the same on all ranks")


def pick_device(options, rank):
    """@throws UsageError if CUDA was asked for and is not there, or has too few devices"""
    if options.device == "cpu" or (options.device == "auto" and
                                   not ("cuda" in options.variant.devices and torch.cuda.is_available())):
        if "cpu" not in options.variant.devices:
            raise UsageError(f"--variant {options.variant.name}: found no CUDA device, expected one")
        if options.backend == "nccl":
            raise UsageError("--backend nccl: found no CUDA device, expected one for each process")
        return torch.device("cpu")
    devices = torch.cuda.device_count()
    # Gloo can share a device, and a test may want to; NCCL refuses.
    if devices < (1 if options.backend == "gloo" else options.processes):
        raise UsageError(f"--device cuda with --nprocs {options.processes}: found {devices} CUDA devices, "
                         "expected one for each process")
    return torch.device("cuda", rank % devices)


def pin_to_core(rank):
    """Every thread of this process: some libraries start theirs when they are imported."""
    core = sorted(os.sched_getaffinity(0))[rank]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})


def _join(rank, options, device, port):
    """Meets the other ranks. @throws TransientError if one does not come in time"""
    timeout = datetime.timedelta(seconds=options.timeout_s)
    backend = options.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        store = dist.TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False, timeout=timeout)
        keys = [f"arrived/{r}" for r in range(options.processes)]
        store.set(keys[rank], "")
        try:
            store.wait(keys, timeout)
        except dist.DistStoreError:
            missing = [str(r) for r, key in enumerate(keys) if not store.check([key])]
            raise TransientError(f"rendezvous lacks rank {', '.join(missing)} after {options.timeout_s:g} s, "
                                 f"expected all {options.processes}") from None
        dist.init_process_group(backend, store=dist.PrefixStore("ddp", store), rank=rank,
                                world_size=options.processes, timeout=timeout,
                                device_id=device if backend == "nccl" else None)
    except dist.DistError as error:
        raise TransientError(f"no rendezvous at {LOOPBACK}:{port}: {describe(error)[1]}") from None
    return Group(rank, options.processes, backend, device)


def _run_rank(rank, train, options, port, parent, writers):
    """The main function of a rank. An error goes to the parent, which says it.

    It never ends through the interpreter's own end: Gloo's threads may still hold tensors that Python knows, and one
    that asks for the interpreter's lock while that is being torn down aborts the process, after a run that went well.
    """
    # Replaces the signal that torch asks for, which a rank in the middle of a collective would not notice.
    processes.end_with(parent)
    try:
        device = pick_device(options, rank)
        if options.variant.pinned:
            pin_to_core(rank)
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)  # for frameworks on top of torch
        group = _join(rank, options, device, port)
        train(options, device, group)
        dist.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
    except Exception as error:
        code, line = describe(error)
        writers[rank].send((time.monotonic(), code, f"[rank {rank}] {line}"))
        os._exit(code)
    os._exit(0)


def _listen():
    """A port that no other program can take in between, on an address that no other machine can reach."""
    try:
        return socket.create_server((LOOPBACK, 0), backlog=2048)
    except OSError as error:
        raise TransientError(f"cannot listen on {LOOPBACK}: {describe(error)[1]}") from None


def _serve_store(listener, port, options):
    try:
        return dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(),
                             timeout=datetime.timedelta(seconds=options.timeout_s))
    except dist.DistError as error:
        raise TransientError(f"cannot serve a store on {LOOPBACK}:{port}: {describe(error)[1]}") from None


def _environment(options):
    """What the ranks inherit."""
    os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(options.processes)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # as the stages: on one host loopback will do


def _failure(ranks, readers):
    """The cause, after at least one rank has failed: a violent death explains the errors of the others, and the first
    error those after it."""
    time.sleep(SETTLE_S)
    for rank, process in enumerate(ranks):
        if process.exitcode is not None and process.exitcode < 0:
            number = -process.exitcode
            return PeerError(f"rank {rank} was killed by signal {number} ({signal.strsignal(number)})")
    said = [reader.recv() for reader in readers if reader.poll()]
    if said:
        _, code, line = min(said)
        return PeerError(line, code)
    rank = next(r for r, process in enumerate(ranks) if process.exitcode)
    return PeerError(f"rank {rank} exited with code {ranks[rank].exitcode}")


def _watch(ranks, readers):
    """Returns when all ranks are done. @throws PeerError when one fails"""
    running = {process.sentinel: process for process in ranks}
    while running:
        for sentinel in multiprocessing.connection.wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0:
                raise _failure(ranks, readers)


def run(train, options):
    """Runs train(options, device, group) on options.processes ranks, each a process.
    @throws PeerError the first failure, or Stopped; no rank is left then"""
    device = pick_device(options, 0)  # refused once, before anything is started
    _environment(options)
    listener = _listen()
    port = listener.getsockname()[1]
    # Fresh processes, as torchrun's, unless all is imported for many runs. CUDA does not outlive a fork.
    start_method = "fork" if processes.is_served and device.type == "cpu" else "spawn"
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(options.processes)]

    def stop(number, _):
        raise Stopped(signal.Signals(number).name, number)

    # Ctrl-C reaches the whole process group; the ranks inherit that they ignore it, and end with this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ranks = mp.start_processes(_run_rank, (train, options, port, os.getpid(), [w for _, w in pipes]),
                                   nprocs=options.processes, join=False, start_method=start_method).processes
        # After the fork: its thread would not be in the ranks, its connections would.
        store = _serve_store(listener, port, options)
        for number in STOP_SIGNALS:
            signal.signal(number, stop)
        _watch(ranks, [reader for reader, _ in pipes])
        del store
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
