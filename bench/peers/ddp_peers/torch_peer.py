"""Processes, data, model and report, for the training loops of peers with torch."""

import datetime
import hashlib
import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

from .command_line import PeerError, UsageError, guarded
from .processes import run_ranks
from .report import PeerLog
from .training import Mlp, load_samples


def _gather(value):
    """@return every rank's value, by rank"""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _import_backend(name):
    """Makes the backend known to torch: shm is this project's, built with it or installed by pip."""
    if name == "shm":
        sys.path.append(os.environ.get("DDP_PYTHON_DIR") or str(pathlib.Path(__file__).parents[3] / "build/python"))
        try:
            import ddp_cpp  # noqa: F401
        except ImportError as error:
            raise UsageError(f"--backend shm: got {error}, expected build/python (cmake --build build --target ddp_python)") from None


def _train_and_report(rank, options, train, rendezvous):
    """@param rendezvous URL; None: a single process, without process group"""
    torch.set_num_threads(options.threads)
    device = torch.device(options.device, int(os.environ["LOCAL_RANK"]) if rendezvous and options.device == "cuda" else None)
    if rendezvous and device.type == "cuda":
        torch.cuda.set_device(device)
    if rendezvous:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # loopback, as in the stages on one host
        _import_backend(options.backend)
        dist.init_process_group(options.backend, init_method=rendezvous, rank=rank, world_size=options.processes,
                                timeout=datetime.timedelta(seconds=120), device_id=device if options.device == "cuda" else None)
    samples = load_samples(options)
    torch.manual_seed(options.seed)
    model = Mlp(options.layers).to(device)
    initial = parameters_to_vector(model.parameters()).detach().cpu().double()

    log = PeerLog(options, rank)
    train(options, device, samples, model, log)

    final = parameters_to_vector(model.parameters()).detach().cpu().double()
    gather = _gather if rendezvous else lambda value: [value]
    # Bytes, because a NaN equals nothing.
    digests = gather(hashlib.sha256(final.numpy().tobytes()).digest())
    if digests[rank] != digests[0]:
        raise PeerError("the final weights differ from rank 0's, expected the same on all ranks")
    if len(set(digests)) > 1:
        return  # the rank with other weights has raised the error
    log.report(len(final), (final - initial).norm().item(), options.backend if rendezvous else None, gather)
    if rendezvous:
        dist.barrier()
        dist.destroy_process_group()


def _run_started_rank(rank, options, train, folder):
    # Variables for frameworks on top of torch.
    ranks = str(options.processes)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
    _train_and_report(rank, options, train, f"file://{folder}/rendezvous")


def run(options, train):
    """Runs train(options, device, samples, model, log) on every rank, or as one rank of a launcher's."""
    if options.rank is None and options.device == "cuda" and torch.cuda.device_count() < options.processes:
        raise UsageError(f"--device cuda with --nprocs {options.processes}: found {torch.cuda.device_count()} CUDA devices, "
                         "expected one for each process")
    _import_backend(options.backend)  # before the ranks, so that a failure is one line
    if options.processes == 1:
        _train_and_report(0, options, train, None)
    elif options.rank is not None:
        # Ends as run_ranks() ends a rank.
        os._exit(guarded(f"{options.program}: [rank {options.rank}]",
                         lambda: _train_and_report(options.rank, options, train, "env://")))
    else:
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(options.program, options.processes, _run_started_rank, options, train, folder)
