"""How the PyTorch peer trains: see its variants in pytorch.py."""

import sys

import numpy
import torch
from ddp_peers import ranks
from ddp_peers.data import GatherLoader, TutorialLoader, load_dataset, step_shares
from ddp_peers.mlp import Mlp, evaluate, loss_of, parameter_vector
from ddp_peers.training_log import BACKWARD, FORWARD, OPTIMIZER, TrainingLog

TUTORIAL = ("single", "default")
DISTRIBUTED = ("default", "tuned", "tuned_pinned")


def software():
    return {"python": sys.version.split()[0], "torch": torch.__version__, "numpy": numpy.__version__}


def train_by_autograd(options, dataset, model, group, log, device):
    tutorial = options.variant.name in TUTORIAL
    parallel_model = model
    if options.variant.name in DISTRIBUTED:
        settings = {} if tutorial else {"gradient_as_bucket_view": True, "static_graph": True}
        parallel_model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, fused=None if tutorial else True)
    loader = (TutorialLoader if tutorial else GatherLoader)(dataset.train, options, group.rank, device)

    for epoch in range(options.total_epochs):
        loader.set_epoch(epoch)
        log.begin_epoch(epoch)
        for inputs, targets, share in loader:
            log.begin(FORWARD)
            loss = loss_of(parallel_model(inputs), targets, share)
            log.begin(BACKWARD)
            loss.backward()
            log.begin(OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            log.end(loss.detach(), share)
        log.end_epoch()


def train_by_graph(options, dataset, model, group, log, device):
    """The full batches replay one graph: gather, forward, backward and update. The last batch of an epoch, if it is
    smaller, is trained on without it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, fused=True)
    loader = GatherLoader(dataset.train, options, group.rank, device)
    samples = loader.samples
    batch_indices = torch.zeros(min(options.global_batch, len(samples)), dtype=torch.int64, device=device)

    def step(indices):
        optimizer.zero_grad()
        loss = loss_of(model(samples.input[indices]), samples.target[indices], len(indices))
        loss.backward()
        optimizer.step()
        return loss.detach()

    # Libraries choose algorithms and allocate in their first steps, which must not be recorded. The weights do not keep
    # what these steps did to them.
    initial = [p.detach().clone() for p in model.parameters()]
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(11):
            step(batch_indices)
    torch.cuda.current_stream().wait_stream(side_stream)
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph_loss = step(batch_indices)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), initial):
            parameter.copy_(value)

    for epoch in range(options.total_epochs):
        loader.set_epoch(epoch)
        log.begin_epoch(epoch)
        for indices in loader.indices:
            if len(indices) == len(batch_indices):
                batch_indices.copy_(indices)
                graph.replay()
                log.end(graph_loss.clone(), len(indices))
            else:
                log.end(step(indices), len(indices))
        log.end_epoch()


def train(options, device, group=None):
    """@param group None: this is the only process, and there is no process group"""
    torch.set_num_threads(options.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dataset = load_dataset(options)
    torch.manual_seed(options.seed)
    model = Mlp(dataset.layers).to(device)
    initial_weights = parameter_vector(model)

    graph = options.variant.name == "cuda_graph"
    log = TrainingLog(options, options.total_epochs * len(step_shares(len(dataset.train), options)), device.type, group,
                      ranks.CudaClock() if device.type == "cuda" else None, has_phases=not graph)
    (train_by_graph if graph else train_by_autograd)(options, dataset, model, log.group, log, device)

    weights = parameter_vector(model)
    if group is not None:
        group.check_same(weights)
    loss, correct, samples = log.group.sum(evaluate(model, dataset.test, log.group.rank, options.processes, device))
    log.report(dataset, parameters=len(weights), moved=(weights - initial_weights).norm().item(), loss=loss / samples,
               accuracy=correct / samples if dataset.classification else None, software=software())


def run(options):
    if options.variant.name in DISTRIBUTED:
        ranks.run(train, options)
    else:
        train(options, ranks.pick_device(options, 0))
