"""What a peer that is not on torch trains, as arrays."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Work:
    name: str
    layers: list[int]
    loss_floor: float
    train: tuple[np.ndarray, np.ndarray]  # inputs and targets
    test: tuple[np.ndarray, np.ndarray]
    parameters: list[np.ndarray]  # initial: weight (out, in) and bias of each layer
    steps: list[list[np.ndarray]]  # of each epoch: the samples of each step, rank r's being [r::ranks]


def load(options):
    """Draws it with torch, so in a process of its own. @throws UsageError as load_dataset()"""
    import torch

    from .data import load_dataset, seeded_generator
    from .mlp import Mlp

    dataset = load_dataset(options)
    torch.manual_seed(options.seed)
    model = Mlp(dataset.layers)
    steps = []
    for epoch in range(options.total_epochs):
        order = torch.randperm(len(dataset.train), generator=seeded_generator(options.seed + epoch))
        steps.append([part.numpy() for part in order.split(options.global_batch)])
    return Work(dataset.name, dataset.layers, dataset.loss_floor,
                (dataset.train.input.numpy(), dataset.train.target.numpy()),
                (dataset.test.input.numpy(), dataset.test.target.numpy()),
                [parameter.detach().numpy() for parameter in model.parameters()], steps)
