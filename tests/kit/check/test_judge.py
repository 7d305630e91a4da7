"""Any function held against another: what is right passes, and what is wrong gets the verdict that it earns."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check.judge.named import find
from opwright.kit.check.judge.run import judge
from opwright.kit.check.judge.shrink import Shrink
from opwright.kit.spec.samples import Sample
from tests.kit.check import candidates

HERE = candidates.__name__


def judged(candidate: Any, like: Any = candidates.plain_double, samples: Any = None, **options: Any) -> Any:
    return ow.check(candidate, like=like, samples=candidates.ROWS if samples is None else samples, **options)


# --- what is right --------------------------------------------------------------------------------------------------


def test_a_function_defined_here_passes_in_every_property() -> None:
    closed_over = 2.0
    report = judged(lambda x: x * closed_over)
    assert report.passed, report
    assert report.verdict is None
    assert [r.property for r in report.results if r.cases] == [
        "forward", "special", "gradients", "memory", "determinism", "state", "threads"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "like", "samples"),
    [
        (f"{HERE}:softmax", f"{HERE}:plain_softmax", f"{HERE}:cases"),
        (candidates.by_numpy, candidates.plain_double, candidates.ROWS),
        (candidates.builtin, lambda x, y: x + y, candidates.PAIRS),
        (candidates.in_place, candidates.plain_twice_, candidates.ROWS),
        (candidates.reordered, candidates.plain_gather, candidates.INDEXED),
        ("opwright:linear", ow.linear, None),
        ("opwright:axpby_", ow.axpby_, None),
    ],
    ids=["by name", "numpy", "builtin", "in place", "indices", "an operator", "an operator in place"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_right_passes(candidate: Any, like: Any, samples: Any, seed: int) -> None:
    report = ow.check(candidate, like=like, samples=samples, seed=seed)
    assert report.passed, report
    assert report.cases > 80


@pytest.mark.slow
def test_a_compiled_function_passes() -> None:
    report = judged(
        f"{HERE}:compiled", candidates.plain_softmax, only=["forward"], keep=["sizes", "layouts", "values"], timeout=200
    )
    assert report.passed, report


@pytest.mark.slow
def test_a_function_of_an_extension_that_no_module_knows_passes(tmp_path: Path) -> None:
    from torch.utils.cpp_extension import load_inline

    source = "torch::Tensor twice(torch::Tensor x) { return x * 2; }"
    built: Any = load_inline("judged_extension", source, functions=["twice"], build_directory=str(tmp_path))
    sys.modules.pop("judged_extension", None)
    report = judged(built.twice, only=["forward", "gradients"])
    assert report.passed, report
    assert {r.property: r.cases > 0 for r in report.results} == {"forward": True, "gradients": True}


def test_it_cannot_see_the_seed_the_reference_or_the_oracle() -> None:
    def doubled(x: Tensor) -> Tensor:
        return x + x

    report = judged(f"{HERE}:looks_around", doubled, only=["forward"], keep=["sizes", "layouts"], seed=123457)
    assert report.passed, report


def test_gradients_that_a_candidate_does_not_have_are_told_and_not_charged_unless_somebody_insists() -> None:
    report = judged(candidates.by_numpy, only=["gradients"], case="0.float32.plain.dense")
    assert report.passed
    assert any("gradients were not tried" in note for note in report.notes)
    report = judged(lambda x: (x * 2).detach(), only=["gradients"], case="0.float32.plain.dense", gradients=True)
    assert report.verdict.cls == "wrong gradient"


def test_a_candidate_may_refuse_empty_tensors_and_is_told_of() -> None:
    report = judged(candidates.refuses_empty, only=["forward"], case="0-zero.float32.plain")
    assert report.passed
    assert any("it refuses empty tensors" in note for note in report.notes)


def test_booleans_between_other_bytes_are_no_mistake() -> None:
    masks = [(torch.arange(15).reshape(3, 5) % 2 == 0, torch.arange(15).reshape(3, 5) % 3 == 0)]
    report = judged(torch.logical_and, torch.logical_and, masks, only=["memory"], case="0.bool.sliced")
    assert report.passed, report
    assert report.cases == 1


@pytest.mark.parametrize("function", [lambda x: x.T, lambda x: x.contiguous(), lambda x: x[..., 0]])
def test_results_that_are_views_as_the_references_are_pass(function: Any) -> None:
    assert judged(function, function, only=["state"], case="0.float32.plain.later").passed


# --- what is wrong --------------------------------------------------------------------------------------------------

QUICK = {
    "without_maximum": "wrong values",
    "long_rows": "wrong values",
    "past_result": "out of bounds",
    "lazy": "cheats",
    "segfault": "crash",
    "exits": "crash",
    "raises": "crash",
    "greedy": "crash",
    "patches": "wrong values",
    "forges": "cheats",
    "prints_an_answer": "wrong values",
}
SLOW = {
    "wrong_gradient": "wrong gradient",
    "past_argument": "out of bounds",
    "writes_argument": "out of bounds",
    "reads_past_end": "out of bounds",
    "uninitialised": "nondeterministic",
    "shared_scratch": "race",
    "nondeterministic": "nondeterministic",
    "random": "nondeterministic",
    "by_address": "cheats",
    "by_shape": "cheats",
    "by_count": "cheats",
    "handed_out_again": "cheats",
    "loops": "timeout",
}


@functools.cache
def verdict_of(name: str, again: int = 0) -> Any:
    like = candidates.plain_softmax if name == "without_maximum" else candidates.plain_double
    report = judged(f"{HERE}:{name}", like, timeout=2.0, memory=1.0)
    assert not report.passed
    assert report.verdict is not None, report
    return report.verdict


@pytest.mark.parametrize("name", QUICK)
def test_what_is_wrong_gets_the_class_that_it_earns(name: str) -> None:
    assert verdict_of(name).cls == QUICK[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_what_is_wrong_otherwise_gets_the_class_that_it_earns(name: str) -> None:
    assert verdict_of(name).cls == SLOW[name]


def test_an_argument_handed_out_as_a_result_is_told_apart_from_one_of_its_own() -> None:
    def relu(x: Tensor) -> Tensor:
        return x if bool((x >= 0).all()) else torch.relu(x)

    report = judged(relu, torch.relu, [(torch.ones(3, 5),)], only=["forward"], case="0.float32.plain")
    assert report.verdict.cls == "cheats"
    assert "its result lies in the memory of" in report.verdict.message


def test_an_argument_that_is_written_to_for_large_values_alone_is_found() -> None:
    def softmax(x: Tensor) -> Tensor:
        if bool((x.abs() > 1e4).any()):
            x.sub_(x.amax(-1, keepdim=True))
        return torch.softmax(x, -1)

    samples = [(torch.tensor([[2e4, 1.0, 3.0]]),)]
    report = judged(softmax, candidates.plain_softmax, samples, only=["forward"], case="0.float32.plain")
    assert report.verdict.cls == "out of bounds"
    assert report.verdict.message == "it writes to its argument"


@pytest.mark.parametrize(
    ("candidate", "like", "message"),
    [
        (lambda x: [x * 2], lambda x: x * 2, "it gives a list of (a tensor) where the reference gives a tensor"),
        (lambda x: {"b": x * 2}, lambda x: {"a": x * 2}, "it gives a dict of (b: a tensor) where"),
        (lambda x: float(x.sum()), lambda x: x.sum(), "it gives a number where the reference gives a tensor"),
        (lambda x: [x.add_(1), None][1], lambda x: x.add_(1), "None"),
    ],
)
def test_results_are_nested_as_the_references_are(candidate: Any, like: Any, message: str) -> None:
    verdict = judged(candidate, like, only=["forward"], case="0.float32.plain").verdict
    assert verdict.cls == "wrong values"
    assert message in verdict.message


def test_messages_say_what_happened() -> None:
    assert verdict_of("segfault").message == "it crashed with SIGSEGV"
    assert "it ended its process with status 0" in verdict_of("exits").message
    assert "more than 1 GiB of memory" in verdict_of("greedy").message
    assert "it raised RuntimeError" in verdict_of("raises").message
    assert "gave other values than the first" in verdict_of("random").message


def test_the_smallest_call_is_found_and_the_same_each_time() -> None:
    first, second = verdict_of("long_rows"), verdict_of("long_rows", again=1)
    assert first.to_json() == second.to_json()
    (x,) = first.sample.args
    assert x.shape == (100,)
    assert not x.any()
    assert first.case != ""
    assert first.tries <= 600
    assert verdict_of("segfault").sample.args[0].shape == (20,)
    assert verdict_of("raises").call == "raises(torch.tensor([0.0, 0.0, 0.0]))"


def test_a_call_shrinks_in_dimensions_sizes_layout_and_values() -> None:
    x = torch.randn(6, 5, 40).transpose(0, 1)
    search = Shrink(Sample((x, torch.randn(40))), lambda s: (s.args[0].dim() and s.args[0].shape[-1] >= 7) or None)
    search.run()
    smaller, other = search.best.args
    assert smaller.shape == (7,)
    assert other.shape == (7,)
    assert smaller.is_contiguous()
    assert not smaller.any()
    assert not other.any()


def test_a_case_can_be_run_again() -> None:
    verdict = verdict_of("long_rows")
    again = judged(f"{HERE}:long_rows", only=[verdict.property], case=verdict.case)
    assert again.verdict.cls == "wrong values"
    assert again.cases == 1


def test_a_replay_keeps_the_options_that_a_case_was_found_with() -> None:
    options: Any = {
        "gradients": True,
        "timeout": 5.0,
        "deterministic": False,
        "keep": ["values"],
        "dtypes": (torch.half,),
    }
    wrong = judged(lambda x: x * 3, only=["forward"], case="0.float16.plain", **options).verdict
    for option in ("gradients=True", "timeout=5.0", "deterministic=False", "keep=['values']", "dtypes=[torch.float16]"):
        assert option in wrong.replay
    named: Any = {"like": f"{HERE}:plain_double", "samples": f"{HERE}:ROWS", "only": ["forward"]}
    found = ow.check(f"{HERE}:raises", case="0.float16.plain", **named, **options).verdict
    assert found is not None
    assert found.replay.endswith("--dtype float16 --keep values --gradients --no-deterministic --timeout 5.0")


def test_a_case_that_does_not_exist_is_no_pass() -> None:
    with pytest.raises(ValueError, match="no case 'nonsense' ran; the same seed"):
        judged(candidates.by_numpy, only=["forward"], case="nonsense")


def test_a_check_that_was_stopped_has_not_passed() -> None:
    def stop(*told: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        judge(f"{HERE}:by_numpy", candidates.plain_double, candidates.ROWS, only=["forward"], progress=stop)
    report = stopped.value.report  # type: ignore[attr-defined]
    assert not report.passed
    told = report.to_json()
    assert (told["passed"], told["stopped"], told["verdict"]) == (False, True, None)


def test_what_is_to_stay_stays() -> None:
    report = judged(f"{HERE}:long_rows", only=["forward", "memory"], keep=["sizes"])
    assert report.passed, report


def test_the_judge_leaves_the_random_numbers_of_its_caller_alone() -> None:
    before = torch.get_rng_state()
    judged(f"{HERE}:by_numpy", only=["forward"], keep=["sizes", "layouts", "values"])
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_candidate_starts_ends_with_it() -> None:
    assert judged(f"{HERE}:starts_another", only=["forward"], case="0.float32.plain").passed
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"77.125" in p.read_bytes()]
    assert left == []


def test_a_process_that_ends_is_a_crash_though_one_that_it_forked_goes_on() -> None:
    options: Any = {"only": ["forward"], "case": "0.float32.plain", "timeout": 20.0}
    verdict = judged(f"{HERE}:leaves_another_behind", **options).verdict
    assert verdict.cls == "crash"
    assert "it ended its process with status 3" in verdict.message


def test_a_candidate_cannot_remove_the_judges_files() -> None:
    assert judged(f"{HERE}:tidies_up", only=["forward"], case="0.float32.plain").passed


# --- what makes no sense --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "options", "message"),
    [
        (f"{HERE}:nothing", {}, "has no 'nothing'"),
        (f"{HERE}:softmaxx", {}, "did you mean softmax"),
        (f"{HERE}:unfit", {}, "must be a function, got 3"),
        ("no_such_module:f", {}, "there is no module 'no_such_module'"),
        ("softmax", {}, "write module:function"),
        (candidates.softmax, {"samples": []}, "there are no samples"),
        (candidates.softmax, {"samples": [(3,)]}, "no sample holds a tensor"),
        (candidates.softmax, {"like": lambda x: x.nothing}, "rejects every sample"),
        (candidates.softmax, {"like": torch.rand_like}, "another result each time"),
        (candidates.softmax, {"like": str}, "gives no tensor"),
        (candidates.softmax, {"samples": lambda make: make(-1)}, "the samples cannot be drawn: RuntimeError"),
        (candidates.softmax, {"keep": ["time"]}, "keep must name some of"),
        (candidates.softmax, {"only": ["fake"]}, "there is no property 'fake'"),
        (candidates.softmax, {"device": "tpu"}, "cpu or cuda|Expected one of"),
        (candidates.softmax, {"timeout": 0}, "must be above 0"),
    ],
)
def test_mistakes_of_the_caller_are_told(candidate: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        judged(candidate, **options)


def test_samples_must_be_given() -> None:
    with pytest.raises(ValueError, match=r"samples=\[\(x, y\)"):
        ow.check(candidates.softmax, like=candidates.plain_softmax)
    with pytest.raises(TypeError, match="samples must be a list of calls, got Tensor"):
        ow.check(candidates.softmax, like=candidates.plain_softmax, samples=torch.ones(3))
    with pytest.raises(TypeError, match="keep goes with like"):
        ow.check(ow.cube, keep=["sizes"])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="held against another by like"):
        ow.check(candidates.softmax)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="candidate must be a function"):
        judged(3)


def test_names_of_files_are_functions_in_them(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("two = 2\n")
    (tmp_path / "of_a_file.py").write_text("from beside import two\ndef double(x):\n    return x * two\n")
    assert find(f"{tmp_path / 'of_a_file.py'}:double")(3) == 6


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_line_ends_with_a_status_and_writes_json(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import torch\n"
        "def relu(x):\n    return torch.relu(x)\n"
        "def cases(make):\n    yield make(4, 7)\n    yield make(3)\n"
    )
    (tmp_path / "fast.py").write_text(
        "import torch\n"
        "def right(x):\n    return torch.where(x <= 0, torch.zeros_like(x), x)\n"
        "def wrong(x):\n    return x.abs()\n"
    )
    (tmp_path / "broken.py").write_text("import no_such_module\n")

    def run(*arguments: str) -> tuple[int, dict[str, Any] | None, str]:
        words = [sys.executable, "-m", "opwright", "check", *arguments, "--like", "plain:relu", "--json", "out.json"]
        (tmp_path / "out.json").unlink(missing_ok=True)
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        file = tmp_path / "out.json"
        return done.returncode, json.loads(file.read_text()) if file.exists() else None, done.stderr

    status, told, _ = run("fast:right", "--samples", "plain:cases", "--only", "forward", "--only", "memory")
    assert (status, told and told["passed"], told and told["verdict"]) == (0, True, None)
    status, told, _ = run("fast:wrong", "--samples", "plain:cases")
    assert status == 1
    assert told is not None
    assert told["verdict"].keys() == {
        "class", "message", "property", "case", "call", "arguments", "index", "expected", "got", "replay", "tries"
    }  # fmt: skip
    assert told["verdict"]["class"] == "wrong values"
    assert "--case" in told["verdict"]["replay"]
    status, told, _ = run("broken:f", "--samples", "plain:cases")
    assert status == 1
    assert told is not None
    assert told["verdict"]["class"] == "crash"
    assert "importing it raised ModuleNotFoundError" in told["verdict"]["message"]
    status, told, said = run("fast:none", "--samples", "plain:cases")
    assert status == 2
    assert told is not None
    assert (told["passed"], told["verdict"]) == (False, None)
    assert "fast has no 'none'" in told["error"]
    assert "fast has no 'none'" in said
    assert run("fast:right")[0] == 2
