"""A kernel that chooses between ways of its own says which one a call would take."""

from __future__ import annotations

from pathlib import Path

from tests.kit.build.test_header import compiled
from tests.kit.build.workshop import KERNEL, Workshop

SAYS = """
#include <opwright/explains.h>
std::string explain_times(const Tensor& x, double by) {
    return x.numel() < 10 ? "in one piece" : "in pieces, times " + std::to_string(static_cast<int>(by));
}
OPWRIGHT_EXPLAINS(times, CPU, times_cpu, explain_times);
"""


def test_explain_shows_what_the_kernel_says(workshop: Workshop) -> None:
    folder = workshop.write()
    plain = (folder / "cpu.cpp").read_text(encoding="utf-8")
    (folder / "cpu.cpp").write_text(plain + SAYS, encoding="utf-8")
    done = workshop.run(f"""
        import torch, opwright as ow
        op = ow.load({str(folder)!r}).times
        few, many = torch.ones(3, requires_grad=True), torch.ones(4, 5)
        print(ow.explain(op, few).steps[0].why)      # not built: it is not asked, nor built for that
        assert op(torch.ones(3)).tolist() == [102.0] * 3
        print(ow.explain(op, few).steps[0].why)
        print(ow.explain(op, many, by=7).steps[0].why)
        print(ow.explain(op, many, by=7).steps[0].why)
        print(ow.explain(op, many.half()).steps[0].why)
        print(ow.explain(op).steps[0].why)
        assert op(torch.ones(3), by=1).tolist() == [101.0] * 3
    """)
    assert done.stdout.splitlines() == [
        "the call lies in its domain; built on first use",
        "the call lies in its domain; built; in one piece",
        "the call lies in its domain; built; in pieces, times 7",
        "the call lies in its domain; built; in pieces, times 7",
        "cpu.cpp: x is float16, the kernel takes float32, float64",
        "cpu.cpp on cpu",
    ], done.stderr
    again = workshop.run(f"""
        import torch, opwright as ow
        print(ow.explain(ow.load({str(folder)!r}).times, torch.ones(3)).steps[0].why)
    """)
    assert again.stdout.strip().endswith("in one piece"), again.stderr  # a library that is there is asked


def test_a_function_of_other_parameters_does_not_compile(tmp_path: Path) -> None:
    kernel = KERNEL.format(name="times", sign="100", more="")
    done = compiled(tmp_path / "cpu.cpp", kernel + SAYS)
    assert done.returncode == 0, done.stderr
    done = compiled(tmp_path / "cpu.cpp", kernel + SAYS.replace("double by", "const Tensor& by"))
    assert done.returncode != 0
    assert "explain_times: it must take what times_cpu takes, and return std::string" in done.stderr
