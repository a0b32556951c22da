"""How the variant tutorial of the PyTorch peer trains: the Trainer of PyTorch's DDP tutorial series, its steps timed."""

import torch
from ddp_peers.data import TutorialLoader
from ddp_peers.mlp import loss_of
from ddp_peers.training_log import BACKWARD, FORWARD, OPTIMIZER
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, train_data, optimizer, device, log):
        self.device = device
        self.model = DDP(model, device_ids=[device.index] if device.type == "cuda" else None)
        self.train_data = train_data
        self.optimizer = optimizer
        self.log = log

    def _run_batch(self, source, targets, share):
        self.optimizer.zero_grad()
        self.log.begin(FORWARD)
        output = self.model(source)
        loss = loss_of(output, targets, share)
        self.log.begin(BACKWARD)
        loss.backward()
        self.log.begin(OPTIMIZER)
        self.optimizer.step()
        self.log.end(loss.detach(), share)

    def _run_epoch(self, epoch):
        # As the tutorial reads a batch to print its size; before the first step, so no step pays for it.
        next(iter(self.train_data))
        self.train_data.set_epoch(epoch)
        self.log.begin_epoch(epoch)
        for source, targets, share in self.train_data:
            self._run_batch(source, targets, share)
        self.log.end_epoch()

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)


def train(options, dataset, model, log, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    train_data = TutorialLoader(dataset.train, options, log.group.rank, device)
    Trainer(model, train_data, optimizer, device, log).train(options.total_epochs)
