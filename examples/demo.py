"""Shows every operator at work: what it is, that it is right, and what it costs over the plain function."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import opwright as ow
from opwright.kit import register


def agrees(op: ow.Op[..., Any]) -> tuple[int, float]:
    """How many samples were compared with the reference in float64, and the largest error seen."""
    count, worst = 0, 0.0
    for sample, exact in zip(
        op.draw_samples(ow.Maker(torch.float32)), op.draw_samples(ow.Maker(torch.float64)), strict=True
    ):
        got = op(*sample.args, **sample.kwargs).double()
        expected = op.reference(*exact.args, **exact.kwargs)
        count += 1
        if got.numel():
            worst = max(worst, ((got - expected).abs() / (1 + expected.abs())).max().item())
    return count, worst


def differentiates(op: ow.Op[..., Any]) -> bool:
    for sample in op.draw_samples(ow.Maker(torch.float64)):
        tensors = [a.requires_grad_() for a in sample.args if isinstance(a, torch.Tensor)]
        rest = sample.args[len(tensors) :]

        def call(*given: torch.Tensor, rest: Any = rest, kwargs: Any = sample.kwargs) -> Any:
            return op(*given, *rest, **kwargs)

        if not (torch.autograd.gradcheck(call, tensors) and torch.autograd.gradgradcheck(call, tensors)):
            return False
    return True


def main() -> None:
    console = Console()
    operators = [op for op in register.operators() if op.parent is None and op.has_rung]
    table = Table("operator", "is", "samples", "largest error in float32", "first and second derivatives")
    for op in track(operators, description="checking", console=console, transient=True):
        count, worst = agrees(op)
        right = "right" if differentiates(op) else "[red]WRONG[/]"
        table.add_row(op.name, (op.__doc__ or "").strip().partition("\n")[0], str(count), f"{worst:.1e}", right)
    console.print(table)
    x = torch.rand(3, requires_grad=True)
    console.print(f"\nWhat a call runs, from ow.explain:\n\n{ow.explain(ow.axpby, x, x, a=2)}", highlight=False)
    console.print(
        "\nWhat an operator costs over the plain function: python benchmarks/see_through.py\n"
        "Make one of your own:                            opwright new my_op",
        highlight=False,
    )


if __name__ == "__main__":
    main()
