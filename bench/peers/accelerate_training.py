"""How the Accelerate peer trains."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs
from ddp_peers import torch_peer
from ddp_peers.data import TutorialLoader
from ddp_peers.mlp import loss_of
from ddp_peers.training_log import BACKWARD, FORWARD, OPTIMIZER


def train(options, dataset, model, log, device):
    accelerator = Accelerator(
        cpu=device.type == "cpu", dataloader_config=DataLoaderConfiguration(even_batches=False),
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True, static_graph=True)])
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, fused=True)
    batches = TutorialLoader(dataset.train, options, log.group.rank, device, whole_batches=True, sharded=False)
    model, optimizer, batches.loader = accelerator.prepare(model, optimizer, batches.loader)

    for epoch in range(options.total_epochs):
        batches.set_epoch(epoch)
        log.begin_epoch(epoch)
        for inputs, targets, share in batches:
            log.begin(FORWARD)
            loss = loss_of(model(inputs), targets, share)
            log.begin(BACKWARD)
            accelerator.backward(loss)
            log.begin(OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            log.end(loss.detach(), share)
        log.end_epoch()


def run(options):
    torch_peer.run(options, train, "accelerate")
