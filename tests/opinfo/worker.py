"""A process that examines operators, one after the other, as it is told through a pipe.

It is a process of its own since an operator may crash, hang, or leave memory behind.
"""

from __future__ import annotations

import faulthandler
import sys
import warnings
from multiprocessing.connection import Connection

import torch

from tests.opinfo import database
from tests.opinfo.checks import shown
from tests.opinfo.examine import Result, Settings, examine


def main(descriptor: int) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")  # PyTorch's own, about its own operators
    torch.set_num_threads(1)
    torch._dynamo.config.capture_scalar_outputs = True
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    pipe = Connection(descriptor)
    infos = database.load()
    pipe.send(("names", sorted(infos)))
    while True:
        try:
            name, settings = pipe.recv()
        except EOFError:
            return
        assert isinstance(settings, Settings)
        try:
            result = examine(name, infos[name], settings, lambda what: pipe.send(("at", what)))
        except Exception as error:  # a fault of the harness, which must not look like the operator's
            result = Result(name, checks=1)
            result.find(settings.forms[0], "harness", shown(error))
        pipe.send(("done", result))


if __name__ == "__main__":
    main(int(sys.argv[1]))
