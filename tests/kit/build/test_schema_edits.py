"""An operator with a C++ kernel may change its schema in one process, and back."""

from __future__ import annotations

from tests.kit.build.workshop import Workshop

EDIT = """
import pathlib, torch, opwright as ow
folder = pathlib.Path({folder!r})
OP, KERNEL = (folder / "op.py").read_text(), (folder / "cpu.cpp").read_text()
x = torch.ones(3)
print(ow.load(folder).times(x, by=4).tolist())
(folder / "op.py").write_text(
    OP.replace("by: ow.Number = 2)", "by: ow.Number = 2, plus: float = 1.0)").replace("+ 0.0", "+ plus"))
(folder / "cpu.cpp").write_text(
    KERNEL.replace("double by)", "double by, double plus)").replace("[by = C(by)]", "[by = C(by), plus = C(plus)]")
    .replace("C(100)", "C(100) + plus"))
op = ow.load(folder).times
print([op(x, by=4, plus=2.0).tolist() for _ in range(2)][-1])
(folder / "op.py").write_text(OP), (folder / "cpu.cpp").write_text(KERNEL)
op = ow.load(folder).times
print([op(x, by=4).tolist() for _ in range(2)][-1])
"""


def test_a_schema_is_edited_there_and_back(workshop: Workshop) -> None:
    folder = workshop.write()
    done = workshop.run(EDIT.format(folder=str(folder)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["[104.0, 104.0, 104.0]", "[106.0, 106.0, 106.0]", "[104.0, 104.0, 104.0]"]


LARGE = """
import torch, opwright as ow
op = ow.load({folder!r}).times
x = torch.ones(1, dtype=torch.float64)
print([op(x, by=k).item() for k in (4, 4, 2**53, 2**53 + 1)])
"""


def test_whole_numbers_that_a_double_cannot_hold_go_to_the_reference(workshop: Workshop) -> None:
    folder = workshop.with_own_libraries().write(sign="100")
    done = workshop.run(LARGE.format(folder=str(folder)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([104.0, 104.0, float(2**53) + 100, float(2**53 + 1)])


ADD = """
import pathlib, torch, opwright as ow
folder = pathlib.Path({folder!r})
for takes, body, parameters, factor in (
    ("x: Tensor", "x * 2", "const Tensor& x", "2"),
    ("x: Tensor, k: float = 3.0", "x * k", "const Tensor& x, double k", "k"),
):
    (folder / "op.py").write_text(
        "import torch, opwright as ow\\nfrom torch import Tensor\\n@ow.op\\n"
        f"def edited(" + takes + ") -> Tensor:\\n    return " + body + "\\n"
        "edited.kernel_file('cpu.cpp', ow.Domain(dtypes=(torch.float32,)))\\n")
    (folder / "cpu.cpp").write_text(
        "#include <opwright/kernel.h>\\nTensor run(" + parameters + ") {{ return compute(x, [&](auto zero) {{\\n"
        "using C = decltype(zero); return map([=](C v) {{ return v * C(" + factor + "); }}, x); }}); }}\\n"
        "OPWRIGHT_KERNEL(edited, CPU, run);\\n")
    print(ow.load(folder).edited(torch.ones(1)).item())
"""


def test_a_process_that_edited_a_schema_ends_in_peace(workshop: Workshop) -> None:
    """Its hidden overloads must differ in their arguments, the first from the operator itself: PyTorch takes leave of
    the wrong one otherwise, and aborts."""
    done = workshop.run(ADD.format(folder=str(workshop.write())))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2.0", "3.0"]
