"""The stages' data, sample for sample, and two ways to read it in the stages' order.

The generator calls are those of common/data/dataset.cpp and common/data/data_loader.cpp: a change there belongs here too.
"""

import gzip
import hashlib
import itertools
import math
import pathlib
import zlib
from dataclasses import dataclass

import torch
import torch.utils.data

from .errors import UsageError

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
SEED_MODULUS = 2**64  # the stages add seed and epoch as 64-bit numbers


@dataclass
class Samples:
    input: torch.Tensor  # (size, in_features) float32
    target: torch.Tensor  # (size) int64 classes, or (size, 1) float32 values

    def __len__(self):
        return len(self.input)

    def to(self, device):
        return Samples(self.input.to(device), self.target.to(device))


@dataclass
class Dataset:
    name: str
    train: Samples
    test: Samples
    layers: list[int]
    loss_floor: float  # what no model can beat; not a number if unknown

    @property
    def classification(self):
        return self.layers[-1] > 1


def seeded_generator(seed):
    return torch.Generator().manual_seed(seed % SEED_MODULUS)


def _synthetic(options):
    noise, logit_scale = 0.1, 3.0
    layers = list(options.layers or (20, *(options.hidden or ()), 1))
    in_features, out_features = layers[0], layers[-1]
    test_size = max(options.dataset_size // 4, 1)
    size = options.dataset_size + test_size

    generator = seeded_generator(options.seed)
    inputs = torch.randn(size, in_features, generator=generator)
    weight = torch.randn(in_features, out_features, generator=generator) / math.sqrt(in_features)
    bias = torch.randn(out_features, generator=generator)
    target = inputs.matmul(weight) + bias
    if out_features > 1:
        probability = torch.softmax(logit_scale * target.double(), 1)
        target = probability.multinomial(1, replacement=False, generator=generator).squeeze(1)
        loss_floor = -(probability * probability.clamp_min(1e-300).log()).sum(1).mean().item()
    else:
        target = target + noise * torch.randn(size, 1, generator=generator)
        loss_floor = noise * noise
    split = options.dataset_size
    return Dataset("synthetic", Samples(inputs[:split], target[:split]), Samples(inputs[split:], target[split:]),
                   layers, loss_floor)


def _read_digits(folder):
    images, columns = 1797, 65
    sha256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
    path = folder / "digits.csv.gz"
    try:
        with gzip.open(path) as file:
            text = file.read(1 << 20)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"data file {path} cannot be read ({error}), expected digits.csv.gz in the folder "
                         "that --data-dir names") from None
    found = hashlib.sha256(text).hexdigest()
    if found != sha256:
        raise UsageError(f"data file {path} has SHA-256 {found}, expected {sha256}")
    cells = list(map(int, text.decode().replace("\n", ",").rstrip(",").split(",")))
    return torch.tensor(cells).view(images, columns)


def _digits(options):
    table = _read_digits(pathlib.Path(options.data_dir) if options.data_dir else CHECKOUT / "data")
    held_out = torch.arange(len(table)) % 5 == 0
    train, test = (Samples(rows[:, :64].float().contiguous(), rows[:, 64].contiguous())
                   for rows in (table[~held_out], table[held_out]))
    pixels = train.input.double()
    mean = pixels.mean().item()
    deviation = math.sqrt((pixels - mean).square_().mean().item())
    for samples in (train, test):
        samples.input.sub_(mean).div_(deviation)
    return Dataset("digits", train, test, [64, *(options.hidden or (128, 128)), 10], math.nan)


def load_dataset(options):
    """@throws UsageError if a file is missing or is not the published one"""
    with torch.no_grad():
        return _digits(options) if options.dataset == "digits" else _synthetic(options)


def step_shares(size, options):
    """The samples of each step of an epoch, divided by the ranks: what a sum of losses is divided by, so that the mean
    of the ranks' gradients is that of the global batch (Note [Averaging] in common/model/mlp.hpp)."""
    return [min(options.global_batch, size - begin) / options.processes
            for begin in range(0, size, options.global_batch)]


class _Unpadded(torch.utils.data.DistributedSampler):
    """DistributedSampler repeats samples until all ranks have equally many, which would train on other data than the
    stages do. The repetitions come last, so they can be cut off."""

    def __len__(self):
        return len(range(self.rank, len(self.dataset), self.num_replicas))

    def __iter__(self):
        return itertools.islice(super().__iter__(), len(self))


class _WholeBatches(torch.utils.data.TensorDataset):
    """A batch is one gather, not a list of samples to collate."""

    def __getitems__(self, indices):
        return self[indices]


class TutorialLoader:
    """TensorDataset, DataLoader and DistributedSampler as PyTorch's DDP tutorial puts them together. Iterating gives
    (input, target, share of the step), see step_shares()."""

    def __init__(self, samples, options, rank, device, whole_batches=False, sharded=True):
        """@param whole_batches the faster way to fetch one
        @param sharded false: the framework deals the batches to the ranks"""
        self.device = device
        self.seed = options.seed
        self.shares = step_shares(len(samples), options)
        self.empty = (samples.input[:0], samples.target[:0])
        kind = _WholeBatches if whole_batches else torch.utils.data.TensorDataset
        dataset = kind(samples.input, samples.target)
        self.generator = torch.Generator()
        if options.processes == 1 or not sharded:
            self.sampler = torch.utils.data.RandomSampler(dataset, generator=self.generator)
        else:
            even = len(dataset) % options.processes == 0
            sampler = torch.utils.data.DistributedSampler if even else _Unpadded
            self.sampler = sampler(dataset, num_replicas=options.processes, rank=rank, seed=options.seed)
        self.loader = torch.utils.data.DataLoader(dataset, batch_size=options.batch_per_rank, sampler=self.sampler,
                                                  pin_memory=device.type == "cuda",
                                                  collate_fn=tuple if whole_batches else None)

    def set_epoch(self, epoch):
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        self.generator.manual_seed((self.seed + epoch) % SEED_MODULUS)

    def __iter__(self):
        # A rank that has one sample less may have one batch less: it takes part with an empty one.
        batches = itertools.chain(self.loader, itertools.repeat(self.empty))
        for share, (inputs, targets) in zip(self.shares, batches):
            yield inputs.to(self.device), targets.to(self.device), share


class GatherLoader:
    """A batch is one gather by index, the permutation is drawn between epochs, and the samples are on the device."""

    def __init__(self, samples, options, rank, device):
        self.samples = samples.to(device)
        self.device = device
        self.options = options
        self.rank = rank
        self.shares = step_shares(len(samples), options)
        self.input = self.samples.input[:0].clone()
        self.target = self.samples.target[:0].clone()
        self.indices = []

    def set_epoch(self, epoch):
        order = torch.randperm(len(self.samples), generator=seeded_generator(self.options.seed + epoch))
        own = order[self.rank::self.options.processes].contiguous().to(self.device)
        self.indices = list(own.split(self.options.batch_per_rank))
        self.indices += [own[:0]] * (len(self.shares) - len(self.indices))

    def __iter__(self):
        for share, indices in zip(self.shares, self.indices):
            if len(indices) != len(self.input):  # the last batch of an epoch, and the first of the next
                self.input = self.samples.input.new_empty(len(indices), *self.samples.input.shape[1:])
                self.target = self.samples.target.new_empty(len(indices), *self.samples.target.shape[1:])
            torch.index_select(self.samples.input, 0, indices, out=self.input)
            torch.index_select(self.samples.target, 0, indices, out=self.target)
            yield self.input, self.target, share
