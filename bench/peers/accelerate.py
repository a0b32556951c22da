#!/usr/bin/env python3
"""Trains the stages' model with Hugging Face's Accelerate: a peer as in bench/peers/README.md."""

import itertools
import sys

from ddp_peers.command_line import run_peer

VARIANTS = {"ddp": "gradient_as_bucket_view, static_graph, fused SGD, a batch fetched by one gather"}


def train(options, device, samples, model, log):
    import torch
    from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs
    from ddp_peers.training import loss_of, step_shares
    from torch.utils.data import DataLoader, RandomSampler, TensorDataset

    class WholeBatches(TensorDataset):
        """A batch is one gather, not a list of samples to collate."""

        def __getitems__(self, indices):
            return self[indices]

    accelerator = Accelerator(
        cpu=device.type == "cpu",
        dataloader_config=DataLoaderConfiguration(even_batches=False),  # else the last batches repeat samples
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)])
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, fused=True)
    dataset = WholeBatches(samples.input, samples.target)
    generator = torch.Generator()
    loader = DataLoader(dataset, batch_size=options.batch_per_rank, sampler=RandomSampler(dataset, generator=generator),
                        pin_memory=device.type == "cuda", collate_fn=tuple)
    # Batch k goes to rank k mod n, so a step has the same samples as in the stages.
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    empty = samples.input[:0].to(device), samples.target[:0].to(device)  # for a rank with one batch less

    for epoch in range(options.total_epochs):
        generator.manual_seed((options.seed + epoch) % 2**64)
        log.begin()
        for share, (inputs, targets) in zip(step_shares(options), itertools.chain(loader, itertools.repeat(empty))):
            loss = loss_of(model(inputs), targets, share)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            log.step(loss, share)


def run(options):
    from ddp_peers import torch_peer

    torch_peer.run(options, train)


if __name__ == "__main__":
    sys.exit(run_peer("accelerate", ["torch", "accelerate"], VARIANTS, run))
