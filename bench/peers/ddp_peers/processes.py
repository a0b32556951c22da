"""How a process ends with its parent, and one that has imported a framework and forks for each command.

An import takes seconds. bench starts a server for each peer (`NAME.py --serve SOCKET`) and names the socket to its runs in
DDP_PEER_SERVER. Such a run still is a process of its own, with new ranks, but it begins where the others have imported.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket

SERVER = "DDP_PEER_SERVER"
PR_SET_PDEATHSIG = 1
MAX_REQUEST_BYTES = 1 << 20

is_served = False  # this process is a server, or a fork of one


def end_with(parent):
    """From now on SIGKILL ends this process when its parent ends. @param parent its process id, asked before the fork"""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above


def run_at_server(path, arguments):
    """Has the server run what this process was started for, with its files, folder and environment.
    @return the exit code; None if there is no server, or it was killed: then nothing is lost but time"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        try:
            connection.connect(path)
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            code = connection.recv(16)
        except OSError:
            return None
        return int(code) if code else None


def _run_job(request, files, body):
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return body(request["arguments"])


def _serve_one(connection, body):
    request, files, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
    if not request:
        return
    server = os.getpid()
    job = os.fork()
    if job == 0:
        code = 1
        try:
            end_with(server)
            code = _run_job(json.loads(request), files, body)
        finally:
            os._exit(code)
    for file in files:
        os.close(file)
    # Whoever waits may have been killed, by bench's time limit for example.
    job_end = os.pidfd_open(job)
    if job_end not in select.select([job_end, connection], [], [])[0]:
        os.kill(job, signal.SIGKILL)
    os.close(job_end)
    code = os.waitstatus_to_exitcode(os.waitpid(job, 0)[1])
    try:
        connection.send(str(code if code >= 0 else 128 - code).encode())
    except OSError:
        pass


def serve(path, modules, body):
    """Imports `modules` and waits for commands for ever. @param body(arguments) runs one and returns its exit code"""
    for module in modules:
        importlib.import_module(module)
    global is_served
    is_served = True
    # What was imported stays, and a job that collects garbage does not write to, and so copy, all of it.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.new")
        listener.listen()
        os.rename(f"{path}.new", path)  # it is there once it answers
        while True:
            with listener.accept()[0] as connection:
                _serve_one(connection, body)
