"""The model of main.cpp in Python, for tools/compile_step: docs/guides/your_model.md."""

import torch
from torch import nn


def model():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )


def loss(output, target):
    """@return the mean over the samples"""
    return nn.functional.cross_entropy(output, target)


def example():
    """@return a batch: (samples, 64) pixels and (samples) classes"""
    return torch.rand(8, 64), torch.randint(10, (8,))
