"""A kernel is built when first used, found again by its content, and rebuilt when that changes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.build.workshop import KERNEL_RAN, REFERENCE_RAN, Workshop


def test_first_use_builds_with_progress_and_later_processes_load(workshop: Workshop) -> None:
    folder = workshop.write()
    first = workshop.use(folder)
    assert first.stdout.strip() == KERNEL_RAN, first.stderr
    assert "opwright: building times/cpu.cpp" in first.stderr
    assert "opwright: built times/cpu.cpp in" in first.stderr
    second = workshop.use(folder)
    assert (second.stdout.strip(), second.stderr) == (KERNEL_RAN, "")
    assert (workshop.cache.stat().st_mode & 0o777) == 0o700
    assert not list((workshop.cache / "building").iterdir())


def test_an_edited_source_or_header_rebuilds_and_an_unchanged_one_does_not(workshop: Workshop) -> None:
    folder = workshop.write(sign="SIGN", more='#include "sign.h"')
    header = folder / "sign.h"
    header.write_text('#include "deeper.h"\n')
    (folder / "deeper.h").write_text("#define SIGN 100\n")
    assert workshop.use(folder).stdout.strip() == KERNEL_RAN
    os.utime(header)  # touched, not changed
    os.utime(folder / "cpu.cpp", (2**31, 2**31))
    assert "building" not in workshop.use(folder).stderr
    times = (folder / "deeper.h").stat()
    (folder / "deeper.h").write_text("#define SIGN 200\n")
    os.utime(folder / "deeper.h", ns=(times.st_atime_ns, times.st_mtime_ns))  # changed, with the time it had
    again = workshop.use(folder)
    assert again.stdout.strip() == "[204.0, 204.0, 204.0]"
    assert "building" in again.stderr
    (folder / "deeper.h").write_text("#define SIGN 100\n")
    os.utime(folder / "deeper.h", (1, 1))  # a clock that went backwards
    back = workshop.use(folder)
    assert (back.stdout.strip(), back.stderr) == (KERNEL_RAN, "")


def test_a_header_named_by_a_macro_is_watched_too(workshop: Workshop) -> None:
    folder = workshop.write(sign="SIGN", more='#define WHICH "sign.h"\n#include WHICH')
    (folder / "sign.h").write_text("#define SIGN 100\n")
    assert workshop.use(folder).stdout.strip() == KERNEL_RAN
    (folder / "sign.h").write_text("#define SIGN 300\n")
    assert workshop.use(folder).stdout.strip() == "[304.0, 304.0, 304.0]"


def test_options_come_from_the_spec_and_the_environment(workshop: Workshop) -> None:
    folder = workshop.write(
        sign="SIGN + extra()",
        more='#include "far.h"\ndouble extra();',
        options='cxxflags=("-DSIGN=90",), include=("far away",), sources=("extra.cpp",), ldflags=("-lm",)',
    )
    (folder / "far away").mkdir()
    (folder / "far away" / "far.h").write_text("// found\n")
    (folder / "extra.cpp").write_text("#ifndef EXTRA\n#define EXTRA 10\n#endif\ndouble extra() { return EXTRA; }\n")
    assert workshop.use(folder).stdout.strip() == KERNEL_RAN
    other = workshop.use(folder, OPWRIGHT_CXXFLAGS="-O0 -DEXTRA=20")
    assert other.stdout.strip() == "[114.0, 114.0, 114.0]"


def test_names_full_of_spaces_quotes_and_other_letters_simply_work(workshop: Workshop) -> None:
    folder = workshop.write(where="mes \"opérateurs\" $HOME 'à moi'; rm -rf #%é")
    assert workshop.use(folder).stdout.strip() == KERNEL_RAN


def test_two_folders_with_a_cpu_cpp_each_do_not_collide(workshop: Workshop) -> None:
    one, two = workshop.write("one", sign="1"), workshop.write("two", sign="2")
    done = workshop.run(f"""
        import torch, opwright as ow
        one, two = ow.load({str(one)!r}).one, ow.load({str(two)!r}).two
        print(one(torch.zeros(1)).item(), two(torch.zeros(1)).item())
    """)
    assert done.stdout.split() == ["1.0", "2.0"], done.stderr


def test_building_can_be_forbidden_and_explain_says_so(workshop: Workshop) -> None:
    folder = workshop.write()
    done = workshop.run(
        f"""
        import warnings
        import torch, opwright as ow
        op = ow.load({str(folder)!r}).times
        print(ow.explain(op, torch.ones(3)))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            print(op(torch.ones(3), by=4).tolist())
            print(op(torch.ones(3), by=4).tolist())
        print(len(said), said[0].message)
        """,
        OPWRIGHT_BUILD="0",
    )
    assert "not built, and OPWRIGHT_BUILD=0 forbids it" in done.stdout
    assert done.stdout.count(REFERENCE_RAN) == 2
    assert "1 opwright: " in done.stdout
    assert "OPWRIGHT_BUILD=0 forbids building; unset it, and run `opwright build`" in done.stdout
    assert workshop.use(folder).stdout.strip() == KERNEL_RAN
    assert workshop.use(folder, OPWRIGHT_BUILD="0").stdout.strip() == KERNEL_RAN  # what is built may be used


def test_reload_takes_up_an_edited_kernel_in_the_same_process(workshop: Workshop) -> None:
    folder = workshop.write()
    done = workshop.run(f"""
        import pathlib, torch, opwright as ow
        op = ow.load({str(folder)!r}).times
        x = torch.ones(1)
        compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
        print(op(x, by=4).item(), compiled(x, by=4).item())
        source = pathlib.Path({str(folder)!r}) / "cpu.cpp"
        source.write_text(source.read_text().replace("100", "500"))
        print(op(x, by=4).item())
        op.reload()
        print(op(x, by=4).item(), compiled(x, by=4).item(), torch.ops.user.times(x, by=4).item())
    """)
    assert done.stdout.split() == ["104.0", "104.0", "104.0", "504.0", "504.0", "504.0"], done.stderr


@pytest.mark.slow
def test_an_operator_on_the_whole_of_aten_by_one_word(workshop: Workshop) -> None:
    folder = workshop.write(options='abi="aten"')
    (folder / "cpu.cpp").write_text("""
        #include <ATen/ATen.h>
        #include <torch/library.h>
        at::Tensor times_cpu(const at::Tensor& x, double by) { return at::add(at::mul(x, by), 100); }
        TORCH_LIBRARY_IMPL(OPWRIGHT_NAMESPACE, CPU, m) {
            m.impl("times.cpu_" C10_STRINGIZE(OPWRIGHT_KEY), &times_cpu);
        }
    """)
    assert workshop.use(folder).stdout.strip() == KERNEL_RAN


@pytest.mark.parametrize("native", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_where_a_kernel_refuses_the_reference_says_why(workshop: Workshop, native: str) -> None:
    folder = (workshop.with_own_libraries() if native == "1" else workshop).write()
    op, source = folder / "op.py", folder / "cpu.cpp"
    require = 'ow.require(by != 7, "by must not be 7, got {by}")'
    op.write_text(op.read_text().replace("    return x", f"    {require}\n    return x"))
    refuses = 'check(by < 7, "times: by is ", by); return compute'
    source.write_text(source.read_text().replace("return compute", refuses))
    done = workshop.run(
        f"""
        import torch, opwright as ow
        op = ow.load({str(folder)!r}).times
        for call in (op, torch.ops.user.times, torch.inference_mode()(op)):
            print(call(torch.ones(1), by=4).item())
            for by in (7, 8):  # what the reference takes, the kernel should have
                try:
                    call(torch.ones(1), by=by)
                except (ValueError, RuntimeError) as e:
                    print(type(e).__name__, str(e).splitlines()[0])
        """,
        OPWRIGHT_NATIVE=native,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 9, done.stderr
    for i in (0, 3, 6):
        assert lines[i] == "104.0"
        assert lines[i + 1] == "ValueError times: by must not be 7, got 7"
        assert lines[i + 2].startswith("RuntimeError times: by is 8.0")


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_stops_no_other(workshop: Workshop) -> None:
    samples = "\n@{0}.samples\ndef _(make):\n    yield make(3)\n"
    for name, more in (("times", ""), ("blunt", "int x = no_such_thing;"), ("waves", "")):
        folder = workshop.write(name, sign="0", more=more)
        with (folder / "op.py").open("a") as file:
            file.write(samples.format(name))
    kept = workshop.root / "kept.json"
    options = {
        "build": [],
        "check": ["--only", "forward"],
        "bench": ["--quick", "--without", "compiled", "--seconds", "0.05", "--device", "cpu", "--results", str(kept)],
    }
    said = {}
    for command, flags in options.items():
        asked = [sys.executable, "-m", "opwright", command, str(workshop.root / "ops"), *flags]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, env=workshop.environment)
        assert done.returncode == 1, done.stderr
        said[command] = done.stdout + done.stderr
        assert "blunt/cpu.cpp: it does not compile" in said[command]
        assert "error: 'no_such_thing' was not declared" in said[command]
        assert "int x = no_such_thing;" in said[command]
    assert "2 of 3 libraries are built" in said["build"]
    assert "blunt kernel: blunt/cpu.cpp: it does not compile" in said["check"]
    assert re.search(r"times +│ +\d+ .*forward", said["check"])
    assert "blunt is not measured: blunt/cpu.cpp" in said["bench"]
    rows = json.loads(kept.read_text())["rows"]
    assert {row["op"] for row in rows} == {"times", "waves"}
    assert {row["status"] for row in rows} == {"ok"}


def test_what_does_not_run_here_is_not_called_proved(workshop: Workshop) -> None:
    folder = workshop.write()
    command = [sys.executable, "-m", "opwright", "check", str(folder)]
    for more, why in (({"OPWRIGHT_BUILD": "0"}, "OPWRIGHT_BUILD=0 forbids"), ({"CXX": "/no/g++"}, "no compiler")):
        environment = {**workshop.environment, **more}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 1
        assert "times kernel: it cannot be checked, since its kernel cpu.cpp does not run here" in done.stdout
        assert why in done.stdout


@pytest.mark.slow
def test_compile_commands_are_written_for_editors(workshop: Workshop, tmp_path: Path) -> None:
    folder = workshop.with_own_libraries().write()
    command = [sys.executable, "-m", "opwright", "build", str(folder), "--compile-commands", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=workshop.environment)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "compile_commands.json").read_text())
    assert rows[0]["file"] == str(folder / "cpu.cpp")
    assert "-fsyntax-only" not in rows[0]["arguments"]
    checked = subprocess.run([*rows[0]["arguments"], "-fsyntax-only"], capture_output=True, check=False)
    assert checked.returncode == 0
    assert workshop.use(folder, OPWRIGHT_BUILD="0").stdout.strip() == KERNEL_RAN
    shown = subprocess.run(
        [sys.executable, "-m", "opwright", "cache"],
        capture_output=True,
        text=True,
        check=True,
        env=workshop.environment,
    )
    assert "times/cpu.cpp" in shown.stdout
    pruned = [sys.executable, "-m", "opwright", "cache", "--prune", "--days", "0"]
    subprocess.run(pruned, capture_output=True, text=True, check=True, env=workshop.environment)
    assert not list((workshop.cache / "entries").iterdir())


@pytest.mark.parametrize("native", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_the_reference_serves_what_lies_outside_the_domain(workshop: Workshop, native: str) -> None:
    folder = (workshop.with_own_libraries() if native == "1" else workshop).write()
    done = workshop.run(
        f"""
        import torch, opwright as ow
        from opwright.kit.dispatch import native
        assert (native.available() is None) == ({native} == 1), native.available()
        op = ow.load({str(folder)!r}).times
        x = torch.ones(2)
        calls = [op, torch.ops.user.times, torch.inference_mode()(op)]
        calls.append(torch.compile(op, backend="aot_eager", fullgraph=True))
        for call in calls:
            print(call(x, by=4)[0].item(), call(x, by=True)[0].item(), call(x.double(), by=0.5)[0].item())
            print(call(x.half(), by=4)[0].item(), call(x.long(), by=4)[0].item(), call(x, by=2j)[0].item())
            try:
                call(torch.ones(1, 1, 1, 1, 1))
            except Exception as e:
                print(type(e).__name__, str(e).partition("\\n")[0])
        """,
        OPWRIGHT_NATIVE=native,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 12, done.stderr
    for i in range(0, 12, 3):
        assert lines[i : i + 2] == ["104.0 101.0 100.5", "4.0 4.0 2j"]
        assert "ValueError times: x must have fewer than 5 dimensions, got (1, 1, 1, 1, 1)" in lines[i + 2] or i == 9


LISTED = """
import torch
import opwright as ow

@ow.op
def listed(xs: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    return y + sum(x.sum() for x in xs)

listed.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,), ranks={"xs": 2}, broadcast=True))
"""
LISTED_CPU = """
#include <opwright/kernel.h>
Tensor listed_cpu(const std::vector<Tensor>& xs, const Tensor& y) {
    return map([](float v) { return v + 100; }, y);
}
OPWRIGHT_KERNEL(listed, CPU, listed_cpu);
"""


@pytest.mark.parametrize("native", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_a_domain_holds_for_the_tensors_of_lists(workshop: Workshop, native: str) -> None:
    folder = (workshop.with_own_libraries() if native == "1" else workshop).root / "listed"
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(LISTED, encoding="utf-8")
    (folder / "cpu.cpp").write_text(LISTED_CPU, encoding="utf-8")
    done = workshop.run(
        f"""
        import torch, opwright as ow
        op = ow.load({str(folder)!r}).listed
        y = torch.zeros(3)
        for shapes in ([(2, 3)], [(2, 3), (3,)], [(2, 3), (2, 1)], [(2, 4)], [(2, 3), (4, 3)]):
            print(op([torch.zeros(s) for s in shapes], y)[0].item())
        """,
        OPWRIGHT_NATIVE=native,
    )
    assert done.stdout.split() == ["100.0", "0.0", "100.0", "0.0", "0.0"], done.stderr


def test_clang_builds_too(workshop: Workshop) -> None:
    found = [shutil.which(name) for name in (*(f"clang++-{n}" for n in range(15, 23)), "clang++")]
    clang = next(filter(None, found), None)
    if clang is None:
        pytest.skip("there is no clang here")
    done = workshop.use(workshop.write(), CXX=clang, OPWRIGHT_CXXFLAGS="")
    assert done.stdout.strip() == KERNEL_RAN, done.stderr
