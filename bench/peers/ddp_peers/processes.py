"""One process per rank: how they are started, and how they end together."""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys

from .command_line import PeerError, guarded

PR_SET_PDEATHSIG = 1


def end_with(parent):
    """From now on SIGKILL ends this process when its parent ends. @param parent its process id, asked before the start"""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above


def _run_rank(rank, parent, program, body, arguments):
    """It never ends through the interpreter's own end: Gloo's threads may still hold tensors that Python knows, and one
    that asks for the interpreter's lock while that is being torn down aborts the process, after a run that went well."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent ends
    os._exit(guarded(f"{program}: [rank {rank}]", lambda: body(rank, *arguments)))


def _check(exit_codes):
    """Of several failures the violent death is the cause. An error has been said by its rank."""
    rank, code = min(((rank, code) for rank, code in enumerate(exit_codes) if code), key=lambda failure: failure[1])
    if code > 0:
        sys.exit(code)
    raise PeerError(f"rank {rank} was killed by signal {-code} ({signal.strsignal(-code)})")


def run_ranks(program, count, body, *arguments):
    """Runs body(rank, *arguments) in `count` processes. The first failure ends all.
    @throws PeerError if one was killed; SystemExit with the exit code of one that has said its error"""
    context = multiprocessing.get_context("spawn")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    ranks = [context.Process(target=_run_rank, args=(rank, os.getpid(), program, body, arguments)) for rank in range(count)]
    try:
        for process in ranks:
            process.start()
        running = {process.sentinel: process for process in ranks}
        while running:
            for sentinel in multiprocessing.connection.wait(list(running)):
                running.pop(sentinel).join()  # a sentinel is ready a moment before there is an exit code
            exit_codes = [process.exitcode for process in ranks]
            if any(exit_codes):
                _check(exit_codes)
    finally:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
