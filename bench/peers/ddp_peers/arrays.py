"""Data and initial weights as arrays, for peers without torch."""

import concurrent.futures
import ctypes
import multiprocessing
import os
import signal
from dataclasses import dataclass

import numpy as np

from .command_line import PeerError
from .report import start_log, write_report


@dataclass
class Work:
    inputs: np.ndarray
    targets: np.ndarray
    parameters: list[np.ndarray]  # initial weight (out, in) and bias of each layer
    orders: list[np.ndarray]  # training.epoch_order() of each epoch


def _draw(options):
    import torch

    from .training import Mlp, epoch_order, load_samples

    samples = load_samples(options)
    torch.manual_seed(options.seed)
    parameters = [parameter.detach().numpy() for parameter in Mlp(options.layers).parameters()]
    orders = [epoch_order(options, epoch).numpy() for epoch in range(options.total_epochs)]
    return Work(samples.input.numpy(), samples.target.numpy(), parameters, orders)


def _end_with(parent):
    """From now on SIGKILL ends this process when its parent ends. @param parent the parent's process id, from before the start"""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before prctl()


def start_drawing(options):
    """Draws the Work with torch in another process, while this process imports its framework. @return a future of the Work"""
    with_torch = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _end_with, (os.getpid(),))
    work = with_torch.submit(_draw, options)
    with_torch.shutdown(wait=False)
    return work


def train(options, work, make_batch, step):
    """@param make_batch called between epochs with a step's indices, when the other peers draw their samples
    @param step called with what make_batch returns; returns the loss @return the StepLog"""
    log = start_log(options)
    for order in work.orders:
        of_steps = np.split(order, range(options.global_batch, len(order), options.global_batch))
        batches = [(make_batch(samples), len(samples)) for samples in of_steps]
        log.begin()
        for batch, share in batches:
            log.step(step(*batch), share)
    return log


def report(log, options, work, copies):
    """@param copies final values of each parameter, in the order of `work`, from each replica
    @throws PeerError if the replicas differ"""
    for first, *others in copies:
        # Bytes, because a NaN equals nothing.
        if any(other.tobytes() != first.tobytes() for other in others):
            raise PeerError("the final weights of the replicas differ, expected the same in all")
    moved = sum(np.square(of_parameter[0].astype(np.float64) - initial).sum()
                for of_parameter, initial in zip(copies, work.parameters))
    write_report(log, options, float(np.sqrt(moved)))
