"""The program that compute-sanitizer watches: every rung of an operator, once a case, and nothing judged."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator

import torch

from opwright.kit.check.calls import results_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import MIXED
from opwright.kit.check.travel import arrive


def cases(subject: Subject) -> Iterator[Case]:
    """Few enough for a program that runs a hundred times slower."""
    for s in range(subject.count):
        yield from (Case(s, dtype) for dtype in subject.fast_dtypes)
        yield from (Case(s, subject.main, layout) for layout in ("transposed", "misaligned", MIXED))
        yield from (Case(s, subject.main, variant=variant) for variant in ("tail", "tail2"))
    yield Case(0, subject.main, variant="big")


def main() -> None:
    warnings.simplefilter("ignore")
    request = json.loads(sys.argv[1])
    op = arrive(request["define"])
    if op.has_rung:
        _ = op.backward
    count = 0
    for rung in op.ladder:
        subject = Subject(rung, request["device"], request["seed"])
        if not subject.has_kernel:
            continue
        for case in cases(subject):
            try:
                sample = subject.draw(case)
                taken = rung.choose(rung.signature.bind(sample.args, sample.kwargs))[0]
            except Exception:
                continue  # a case that its author's code does not make
            if taken is not None:
                results_of(rung, rung, sample)
                count += 1
    torch.cuda.synchronize()
    print(f"watched: done, {count} calls")


if __name__ == "__main__":
    main()
