"""How the Lightning Fabric peer trains."""

import torch
from ddp_peers import torch_peer
from ddp_peers.data import TutorialLoader
from ddp_peers.mlp import loss_of
from ddp_peers.training_log import BACKWARD, FORWARD, OPTIMIZER
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy


def train(options, dataset, model, log, device):
    several = options.variant.name == "ddp"
    # The environment is named, or it would look for Slurm's.
    fabric = Fabric(accelerator=device.type, devices=options.processes, plugins=LightningEnvironment(),
                    strategy=DDPStrategy(gradient_as_bucket_view=True, static_graph=True) if several else "auto")
    fabric.launch()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, fused=True)
    batches = TutorialLoader(dataset.train, options, log.group.rank, device, whole_batches=True)
    model, optimizer = fabric.setup(model, optimizer)
    batches.loader = fabric.setup_dataloaders(batches.loader)

    for epoch in range(options.total_epochs):
        batches.set_epoch(epoch)
        log.begin_epoch(epoch)
        for inputs, targets, share in batches:
            log.begin(FORWARD)
            loss = loss_of(model(inputs), targets, share)
            log.begin(BACKWARD)
            fabric.backward(loss)
            log.begin(OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            log.end(loss.detach(), share)
        log.end_epoch()


def run(options):
    torch_peer.run(options, train, "lightning-fabric")
