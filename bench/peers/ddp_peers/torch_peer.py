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

from .command_line import PeerError, UsageError
from .data import load_samples
from .mlp import Mlp
from .processes import run_ranks
from .step_log import StepLog


class CudaStepLog(StepLog):
    """Marks steps by events on the stream, so that the host never waits inside an epoch."""

    def _mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _synchronize(self):
        torch.cuda.synchronize()

    def _times_ns(self, marks):
        self._synchronize()
        return [self.begin_ns + round(marks[0].elapsed_time(mark) * 1e6) for mark in marks]


def _gather(value):
    """@return every rank's value, by rank"""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _mean_over_ranks(value):
    values = torch.tensor([value], dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(values)
    return values.item() / dist.get_world_size()


def _import_backend(name):
    """Makes the backend known to torch: shm is this project's, built with it or installed by pip."""
    if name == "shm":
        sys.path.append(os.environ.get("DDP_PYTHON_DIR") or str(pathlib.Path(__file__).parents[3] / "build/python"))
        try:
            import ddp_cpp  # noqa: F401
        except ImportError as error:
            raise UsageError(f"--backend shm: got {error}, expected build/python (cmake --build build --target ddp_python)") from None


def _train_and_report(rank, options, train, rendezvous):
    """@param rendezvous file; None: a single process, without process group"""
    torch.set_num_threads(options.threads)
    device = torch.device(options.device, rank if options.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if rendezvous:
        # Variables for frameworks on top of torch.
        ranks = str(options.processes)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # loopback, as in the stages on one host
        _import_backend(options.backend)
        dist.init_process_group(options.backend, init_method=f"file://{rendezvous}", rank=rank, world_size=options.processes,
                                timeout=datetime.timedelta(seconds=120), device_id=device if options.device == "cuda" else None)
    samples = load_samples(options)
    torch.manual_seed(options.seed)
    model = Mlp(options.layers).to(device)
    initial = parameters_to_vector(model.parameters()).detach().cpu().double()

    log = (CudaStepLog if device.type == "cuda" else StepLog)(options, rank, *[_mean_over_ranks] if rendezvous else [])
    train(options, device, samples, model, log)

    final = parameters_to_vector(model.parameters()).detach().cpu().double()
    gather = _gather if rendezvous else lambda value: [value]
    # Bytes, because a NaN equals nothing.
    digests = gather(hashlib.sha256(final.numpy().tobytes()).digest())
    if digests[rank] != digests[0]:
        raise PeerError("the final weights differ from rank 0's, expected the same on all ranks")
    if len(set(digests)) > 1:
        return  # the rank with other weights has raised the error
    ranks = gather(log.of_rank())
    if rank == 0:
        log.report(ranks, len(final), (final - initial).norm().item(), options.backend if rendezvous else None)
    if rendezvous:
        dist.barrier()
        dist.destroy_process_group()


def run(options, train):
    """Runs train(options, device, samples, model, log) on every rank."""
    if options.device == "cuda" and torch.cuda.device_count() < options.processes:
        raise UsageError(f"--device cuda with --nprocs {options.processes}: found {torch.cuda.device_count()} CUDA devices, "
                         "expected one for each process")
    _import_backend(options.backend)  # before the ranks, so that a failure is one line
    if options.processes == 1:
        _train_and_report(0, options, train, None)
    else:
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(options.program, options.processes, _train_and_report, options, train, f"{folder}/rendezvous")
