"""The stages' model and its loss: see common/model/mlp.hpp."""

import torch
import torch.nn.functional as F


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
    """This rank's part of the step's mean loss: sum over its samples / `share`, see data.step_shares()."""
    full = len(output) == share
    function = F.mse_loss if output.shape[1] == 1 else F.cross_entropy
    reduced = function(output, target, reduction="mean" if full else "sum")
    return reduced if full else reduced / share
