"""How the tensors of a gradient may be cut: what its operator declares, transposed, to every order.

Where an operator's result is cut, so is its incoming gradient, and where an input is cut, so is its gradient. An input
that every device has whole gets a summand of its gradient from each; a result that is a sum gives every device the
whole of its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opwright.kit.derive.roles import Gradient, SavingForm
from opwright.kit.spec.shard import PARTIAL, REPLICATE, Placement, Rule, Shape, Shapes, Sharding

if TYPE_CHECKING:
    from opwright.kit.op import Op


GRADIENTS = "gradients"
"""What is cut where nothing is but incoming gradients, of which each device may have a summand."""


def declared(op: Op[..., Any]) -> tuple[Op[..., Any], Sharding] | None:
    """The operator whose author says how this one's tensors may be cut, and what is said; None: nobody does."""
    if op.spec.sharding is not None:
        return op, op.spec.sharding
    below = base(op)
    return None if below is None else declared(below)


def base(op: Op[..., Any]) -> Op[..., Any] | None:
    """The operator whose rules an operator's follow from. A surrogate is no derivative: nothing follows for it."""
    role = op.role
    if isinstance(role, SavingForm):
        return role.of
    if isinstance(role, Gradient) and not op.home.surrogate:
        return role.of
    return None


def rules(
    op: Op[..., Any], author: Op[..., Any], sharding: Sharding, shapes: Shapes, results: Sequence[Shape | None]
) -> list[Rule]:
    """The rules of an operator for tensors and results of these shapes, from the sharding of `author`."""
    if op is author or isinstance(op.role, SavingForm):
        count = len(op.signature.outputs)
        found = sharding.rules(shapes, results)
        if op is not author and len(sharding.outputs) < count:
            missing = op.signature.outputs[len(sharding.outputs)].name
            raise TypeError(
                f"{author.name}: shard must describe the extra result {missing!r}: {sharding.text} {missing}[…]"
            )
        return [rule._replace(outputs=rule.outputs[:count]) for rule in found]
    role = op.role
    assert isinstance(role, Gradient)
    return _transposed(op, role, author, sharding, shapes, results)


def _transposed(
    op: Op[..., Any],
    role: Gradient,
    author: Op[..., Any],
    sharding: Sharding,
    shapes: Shapes,
    results: Sequence[Shape | None],
) -> list[Rule]:
    rung, below = role.rung, role.of
    inputs = [p.name for p in below.signature.differentiable_inputs]
    # What was not kept of an input, its gradient tells.
    given: dict[str, Shape | None] = dict(zip(inputs, results, strict=False))
    given |= {name: shapes.get(name, given.get(name)) for name in rung.inputs}
    if any(name not in given for name in inputs):
        return []  # nobody knows where that was cut
    form = below if below.saving_form is None or not rung.outputs else below.saving_form
    known: list[Shape | None] = [None] * len(form.signature.outputs)
    places = dict(zip(rung.grads, below.signature.differentiable_outputs, strict=True))
    for name, index in {**rung.outputs, **places}.items():
        known[index] = known[index] or shapes.get(name)
    found = rules(form, author, sharding, given, known)
    order = 1 + sum(rule.dimension.startswith(GRADIENTS) for rule in found)
    whole = Rule(
        GRADIENTS if order == 1 else f"{GRADIENTS}{order}",  # those that come in at each order may be summands
        {name: REPLICATE for name, shape in given.items() if shape is not None},
        (REPLICATE,) * len(known),
    )
    transposed = []
    for rule in (*found, whole):
        mine: dict[str, Placement] = {name: rule.inputs[name] for name in rung.inputs if name in rule.inputs}
        mine |= {name: rule.outputs[index] for name, index in rung.outputs.items()}
        if any(mine[name] == PARTIAL for name in rung.outputs):
            continue  # a summand of a result is not the result that the gradient takes
        mine |= {name: _transpose(rule.outputs[index]) for name, index in places.items()}
        # Of what is kept for its shape alone, a summand is as good as the whole.
        mine |= {p.name: REPLICATE for p in op.signature.parameters if p.like and mine.get(p.name) == PARTIAL}
        mine = {name: place for name, place in mine.items() if shapes.get(name) is not None}
        outputs = tuple(_transpose(rule.inputs[name]) if name in rule.inputs else REPLICATE for name in inputs)
        transposed.append(Rule(rule.dimension, mine, outputs))
    return transposed


def _transpose(place: Placement) -> Placement:
    if place == REPLICATE:
        return PARTIAL
    return REPLICATE if place == PARTIAL else place
