"""The affine layer."""

from __future__ import annotations

from torch import Tensor, nn

from opwright.ops.linear.op import linear


class Linear(nn.Linear):
    """x Wᵀ + b with learned W and b: the parameters, initialisation and state_dict of torch.nn.Linear.

    >>> import torch, opwright as ow
    >>> layer = ow.nn.Linear(3, 2)
    >>> layer, layer(torch.ones(5, 3)).shape
    (Linear(in_features=3, out_features=2, bias=True), torch.Size([5, 2]))
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
