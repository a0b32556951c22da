"""Processes, data, model and report, for the training loops of peers with torch."""

import datetime
import hashlib
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

from .command_line import PeerError, UsageError, guarded
from .report import start_log, write_report
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


def _train_and_report(options, train, has_group):
    rank = options.rank
    torch.set_num_threads(options.threads)
    device = torch.device(options.device, int(os.environ["LOCAL_RANK"]) if has_group and options.device == "cuda" else None)
    if has_group and device.type == "cuda":
        torch.cuda.set_device(device)
    if has_group:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # loopback, as in the stages on one host
        store = os.environ.get("DDP_STORE_FILE")  # from bench, which starts the ranks
        dist.init_process_group(options.backend, init_method=f"file://{store}" if store else "env://", rank=rank, world_size=options.processes,
                                timeout=datetime.timedelta(seconds=120), device_id=device if options.device == "cuda" else None)
    samples = load_samples(options)
    torch.manual_seed(options.seed)
    model = Mlp(options.layers).to(device)
    initial = parameters_to_vector(model.parameters()).detach().cpu().double()

    log = start_log(options, rank)
    train(options, device, samples, model, log)

    final = parameters_to_vector(model.parameters()).detach().cpu().double()
    gather = _gather if has_group else lambda value: [value]
    # Bytes, because a NaN equals nothing.
    digests = gather(hashlib.sha256(final.numpy().tobytes()).digest())
    if digests[rank] != digests[0]:
        raise PeerError("the final weights differ from rank 0's, expected the same on all ranks")
    if len(set(digests)) > 1:
        return  # the rank with other weights has raised the error
    write_report(log, options, (final - initial).norm().item(), gather)
    if has_group:
        dist.barrier()
        dist.destroy_process_group()


def run(options, train):
    """Runs train(options, device, samples, model, log), as a rank of a launcher's if there are several."""
    if options.device == "cuda" and torch.cuda.device_count() <= int(os.environ.get("LOCAL_RANK", 0)):
        raise UsageError(f"--device cuda: found {torch.cuda.device_count()} CUDA devices, expected one for each process")
    _import_backend(options.backend)
    if options.processes == 1:
        return _train_and_report(options, train, has_group=False)
    # Without the interpreter's shutdown: Gloo's threads may still hold Python's tensors. If such a thread asks for the interpreter's
    # lock during the shutdown, it aborts the process after a good run.
    os._exit(guarded(f"{options.program}: [rank {options.rank}]", lambda: _train_and_report(options, train, has_group=True)))
