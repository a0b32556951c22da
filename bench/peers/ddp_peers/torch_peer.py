"""What surrounds the training loop of a peer on torch: data, model, report."""

import functools

import torch

from . import ranks
from .data import load_dataset, step_shares
from .mlp import Mlp, evaluate, parameter_vector
from .training_log import TrainingLog, versions


def _train_and_report(train, packages, options, device, group=None):
    """@param group None: this is the only process, and there is no process group"""
    torch.set_num_threads(options.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dataset = load_dataset(options)
    torch.manual_seed(options.seed)
    model = Mlp(dataset.layers).to(device)
    initial_weights = parameter_vector(model)

    has_phases = options.variant.name != "cuda_graph"
    log = TrainingLog(options, options.total_epochs * len(step_shares(len(dataset.train), options)), device.type, group,
                      ranks.CudaClock() if device.type == "cuda" else None, has_phases)
    train(options, dataset, model, log, device)

    weights = parameter_vector(model)
    if group is not None:
        group.check_same(weights)
    loss, correct, samples = log.group.sum(evaluate(model, dataset.test, log.group.rank, options.processes, device))
    log.report(dataset, parameters=len(weights), moved=(weights - initial_weights).norm().item(), loss=loss / samples,
               accuracy=correct / samples if dataset.classification else None, software=versions("torch", *packages))


def run(options, train, *packages):
    """Runs train(options, dataset, model, log, device) on every rank. @param packages whose versions are told"""
    body = functools.partial(_train_and_report, train, packages)
    if options.variant.max_processes == 1:
        body(options, ranks.pick_device(options, 0))
    else:
        ranks.run(body, options)
