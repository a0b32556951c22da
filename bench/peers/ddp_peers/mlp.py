"""The stages' model, its loss and its evaluation: see common/model/mlp.hpp."""

import torch
import torch.nn.functional as F

EVALUATION_SAMPLES = 4096  # at a time, which bounds the memory


class Mlp(torch.nn.Module):
    """Linear layers with ReLU between them. After torch.manual_seed() it has the stages' initial weights."""

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
    """This rank's part of the step's mean loss: the sum over its samples divided by `share`, see data.step_shares()."""
    full = len(output) == share
    function = F.mse_loss if output.shape[1] == 1 else F.cross_entropy
    reduced = function(output, target, reduction="mean" if full else "sum")
    return reduced if full else reduced / share


def parameter_vector(model):
    """All parameters, float64, on the host."""
    return torch.cat([p.detach().cpu().double().flatten() for p in model.parameters()])


@torch.no_grad()
def evaluate(model, samples, rank, processes, device):
    """Sums over this rank's part of the samples. Together the ranks' parts are every sample once.
    @return [sum of losses, correct samples, samples]"""
    begin, end = len(samples) * rank // processes, len(samples) * (rank + 1) // processes
    sums = [0.0, 0.0, 0.0]
    for inputs, target in zip(samples.input[begin:end].split(EVALUATION_SAMPLES),
                              samples.target[begin:end].split(EVALUATION_SAMPLES)):
        target = target.to(device)
        output = model(inputs.to(device)).double()
        if output.shape[1] == 1:
            sums[0] += F.mse_loss(output, target.double(), reduction="sum").item()
        else:
            sums[0] += F.cross_entropy(output, target, reduction="sum").item()
            sums[1] += (output.argmax(1) == target).sum().item()
        sums[2] += len(target)
    return sums
