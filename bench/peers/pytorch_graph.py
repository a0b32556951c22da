"""How the variant cuda_graph of the PyTorch peer trains."""

import torch
from ddp_peers.data import GatherLoader
from ddp_peers.mlp import loss_of


def train(options, dataset, model, log, device):
    """The full batches replay one graph: gather, forward, backward and update. The last batch of an epoch, if it is
    smaller, is trained on without it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, fused=True)
    loader = GatherLoader(dataset.train, options, log.group.rank, device)
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
