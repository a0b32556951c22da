"""A model with what a step may meet: embedding, attention, LayerNorm, BatchNorm, a buffer that is assigned, tied weights, a frozen parameter
in the first child, and a loss with weights."""

import torch
from torch import nn


WEIGHTED = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, 50))


class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.ParameterList([nn.Parameter(torch.tensor([0.5]), requires_grad=False)])
        self.embedding = nn.Embedding(50, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.batch_norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.embedding.weight
        self.unused = nn.Linear(2, 1)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return self.out(self.batch_norm(self.norm(x + self.mlp(x))) * self.scale[0])


def model():
    return Zoo()


def loss(output, target):
    return WEIGHTED(output.flatten(0, 1), target.flatten())


def example():
    return torch.randint(50, (4, 8)), torch.randint(50, (4, 8))
