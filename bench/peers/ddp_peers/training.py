"""What the stages train: their synthetic data, sample for sample, in their order, and their model with its loss.

The generator calls are the same as in common/data/dataset.cpp and common/data/data_loader.cpp: change them together.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

NOISE, LOGIT_SCALE = 0.1, 3.0


class Samples(NamedTuple):
    input: torch.Tensor  # (size, in_features) float32
    target: torch.Tensor  # (size) int64 classes, or (size, 1) float32 values


def seeded_generator(seed):
    return torch.Generator().manual_seed(seed % 2**64)  # the stages add seed and epoch as 64-bit numbers


def load_samples(options):
    """Training samples. The stages' test samples are drawn too, for the same numbers, and dropped."""
    in_features, out_features = options.layers[0], options.layers[-1]
    size = options.dataset_size + max(options.dataset_size // 4, 1)
    generator = seeded_generator(options.seed)
    inputs = torch.randn(size, in_features, generator=generator)
    weight = torch.randn(in_features, out_features, generator=generator) / math.sqrt(in_features)
    bias = torch.randn(out_features, generator=generator)
    target = inputs.matmul(weight) + bias
    if out_features > 1:
        probability = torch.softmax(LOGIT_SCALE * target.double(), 1)
        target = probability.multinomial(1, replacement=False, generator=generator).squeeze(1)
    else:
        target = target + NOISE * torch.randn(size, 1, generator=generator)
    return Samples(inputs[:options.dataset_size].clone(), target[:options.dataset_size].clone())


def epoch_order(options, epoch):
    """Order of the samples: step k trains on the k-th --global-batch samples, and rank r of n takes samples r, r + n, ..."""
    return torch.randperm(options.dataset_size, generator=seeded_generator(options.seed + epoch))


def step_shares(options):
    """Number of samples of each step of an epoch / ranks. Sums of losses are divided by it, so that the mean of the ranks'
    gradients is the gradient of the global batch (Note [Averaging] in common/data/data_loader.hpp)."""
    size, batch = options.dataset_size, options.global_batch
    return [min(batch, size - begin) / options.processes for begin in range(0, size, batch)]


class GatherLoader:
    """Gathers each batch by index on the device, and draws the permutation between epochs.
    Iterates over (input, target, share of the step), see step_shares()."""

    def __init__(self, samples, options, rank, device):
        self.samples = Samples(*(tensor.to(device) for tensor in samples))
        self.options = options
        self.rank = rank
        self.shares = step_shares(options)
        self.batch = Samples(*(tensor[:0] for tensor in self.samples))

    def set_epoch(self, epoch):
        own = epoch_order(self.options, epoch)[self.rank::self.options.processes].contiguous().to(self.samples.input.device)
        self.indices = list(own.split(self.options.batch_per_rank))
        # A rank with one batch less has an empty batch in its last step.
        self.indices += [own[:0]] * (len(self.shares) - len(self.indices))

    def __iter__(self):
        for share, indices in zip(self.shares, self.indices):
            if len(indices) != len(self.batch.input):  # the last batch of an epoch, and the first of the next
                self.batch = Samples(*(tensor.new_empty(len(indices), *tensor.shape[1:]) for tensor in self.samples))
            torch.index_select(self.samples.input, 0, indices, out=self.batch.input)
            torch.index_select(self.samples.target, 0, indices, out=self.batch.target)
            yield self.batch.input, self.batch.target, share


class Mlp(torch.nn.Module):
    """As in common/model/mlp.hpp: linear layers with ReLU between them. After torch.manual_seed() it has the stages' initial weights."""

    def __init__(self, widths):
        super().__init__()
        self.layers = len(widths) - 1
        for i in range(self.layers):
            setattr(self, f"layer{i}", torch.nn.Linear(widths[i], widths[i + 1]))

    def forward(self, x):
        x = self.layer0(x)
        for i in range(1, self.layers):
            x = getattr(self, f"layer{i}")(torch.relu(x))
        return x


def loss_of(output, target, share):
    """This rank's part of the step's mean loss: sum over its samples / `share`, see step_shares()."""
    full = len(output) == share
    function = F.mse_loss if output.shape[1] == 1 else F.cross_entropy
    reduced = function(output, target, reduction="mean" if full else "sum")
    return reduced if full else reduced / share
