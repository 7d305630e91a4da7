"""What a report concludes: its first sentence, what it says to do, and what it marks, folds and lays out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opwright.kit.bench.checked import Checked, State
from opwright.kit.bench.report import write_report
from opwright.kit.bench.report.axes import apart
from opwright.kit.bench.report.page import page
from opwright.kit.bench.report.standing import advice, sentence, speed
from opwright.kit.bench.report.verdicts import badge, verdicts
from tests.kit.bench.browser import Browser
from tests.kit.bench.recorded import results, row
from tests.kit.bench.test_report import needs_browser

Row = dict[str, Any]


def pair(us: float, op: str = "twist", **more: Any) -> list[Row]:
    return [row("eager", "reference", 100, op=op, **more), row("opwright", "operator", us, op=op, **more)]


def held(state: State = "now", *, cases: int = 5, failures: int = 0) -> Checked:
    failed = [{"message": "off by 1"}] * failures
    return Checked([{"op": "x", "property": "forward", "cases": cases, "failures": failed}], state)


def plain(html: object) -> str:
    return re.sub(r"<[^>]*>", "", str(html))


def test_the_first_sentence_counts_what_there_is() -> None:
    rows = {"a": pair(50), "b": pair(50), "c": pair(200), "d": pair(100), "e": pair(50), "f": pair(50)}
    known = {"a": held(), "b": held(failures=1), "c": held(), "d": held(), "e": held("before")}
    assert plain(sentence(rows, known)) == (
        "1 of 6 operators hold and are faster than eager PyTorch; 1 fails its check (b); 1 is slower in some case (c); "
        "1 is as fast (d); 1 was checked before its last change (e); 1 is not checked (f)."
    )
    two = {"a": pair(50), "b": pair(40)}
    assert plain(sentence(two, {"a": held(), "b": held()})) == (
        "All 2 operators hold and are faster than eager PyTorch."
    )
    assert plain(sentence(two, {})) == "All 2 operators are faster than eager PyTorch; none is checked."
    assert plain(sentence({"a": pair(50)}, {"a": held("unknown")})) == "a was checked, but its sources are not at hand."


def test_one_slow_case_that_stands_makes_an_operator_slower_and_a_small_size_does_not() -> None:
    other: Row = {"family": "other", "case": "other 2^20"}
    assert speed([*pair(50), *pair(150, **other)]) == "slower"
    assert speed([*pair(50), *pair(150, size=256)]) == "faster"
    wrong = {**row("opwright", "operator", 50, **other), "status": "wrong"}
    assert speed([*pair(50), wrong]) == "unmeasured"
    assert speed([row("eager", "reference", 100)]) == "unmeasured"


def steps(forward: str, backward: str, why: str) -> list[dict[str, str]]:
    return [
        {"name": "forward", "runs": forward, "why": "x: float64 is not in its domain"},
        {"name": "backward", "runs": backward, "why": why},
    ]


@pytest.mark.parametrize(
    ("ran", "passes", "said"),
    [
        (steps("cpu.cpp", "reference", "derived; it computes the forward again: …"), ["forward_backward"],
         "Declare a gradient (@op.gradient), or save"),
        (steps("cpu.cpp", "reference", "its declared gradient"), ["forward_backward"], "Give the gradient a kernel"),
        (steps("reference", "reference", ""), ["forward", "forward_backward"], "float64 is not in its domain"),
        (steps("cpu.cpp", "kernel", "recorded in Python, as …"), ["forward", "forward_backward"], "`opwright build`"),
        (steps("cpu.cpp", "kernel", ""), ["forward"], "leave these calls out of its domain"),
    ],
)  # fmt: skip
def test_what_to_do_follows_from_what_ran(ran: list[dict[str, str]], passes: list[str], said: str) -> None:
    slow = row("opwright", "operator", 50, steps=ran)
    for which in passes:
        slow[f"{which}_speedup"] = row("opwright", "operator", 200)[f"{which}_speedup"]
    (told,) = advice([row("eager", "reference", 100), slow])
    assert said in told
    assert told.startswith("Slower at plain 1048576 float32: ")
    assert len(advice([row("eager", "reference", 100), {**slow, "busy": 3.0}])) == 2


def test_what_is_slow_at_small_sizes_alone_is_the_cost_of_a_call() -> None:
    rows = [*pair(50), *pair(150, size=256)]
    (told,) = advice(rows)
    assert "plain 256" in told
    assert "the cost of a call (2.50 µs) shows at small sizes; at plain 1048576 it is not slower" in told
    assert advice(pair(50)) == []


def test_a_badge_says_what_holds_and_claims_nothing_of_changed_sources() -> None:
    assert plain(badge(held())) == "1 property holds in 5 cases"
    assert plain(badge(held("before"))) == "checked before its last change"
    assert plain(badge(held("unknown"))) == "checked; its sources are not at hand"
    assert plain(badge(held(cases=0))) == "not checked"
    assert plain(badge(None)) == "not checked"
    assert "check it again" in plain(verdicts(held("before"), "x"))


def test_properties_are_a_matrix_of_what_they_were_tried_on() -> None:
    listed: list[Row] = []
    for rung in ("x", "x_saving", "x_backward"):
        listed += [{"op": rung, "property": f"p{i}", "cases": i + 1, "failures": []} for i in range(12)]
    listed[0] = {"op": "x", "property": "p0", "cases": 0, "failures": [], "skipped": "no <b>case"}
    listed[1]["failures"] = [{"message": "off"}]
    text = str(verdicts(Checked(listed), "x"))
    assert text.count("<table") == 2  # twelve lines, six and six
    heads = re.findall(r"<th scope=\"col\">(.*?)</th>", text)
    assert heads == ["property", "forward", "saving form", "backward"] * 2
    lines = re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", text)
    assert len(lines) == 12
    assert plain(lines[0]).split() == ["p0–✓", "1✓", "1"]
    assert "✗ 1 of 2" in lines[1]
    assert "p0 (forward) skipped: no &lt;b&gt;case" in re.sub("</?strong>", "", text)


def test_many_operators_are_folded_unless_there_is_something_to_see_to() -> None:
    names = ("a", "b", "c", "d", "e")
    times = {"a": 50, "b": 50, "c": 200, "d": 50, "e": 100}
    found = results(*(r for n in names for r in pair(times[n], op=n)))

    def opened(text: str) -> dict[str, bool]:
        folds = re.findall(r'<section id="op-(\w)"[^>]*><details class="fold"( open)?>', text)
        return {name: bool(how) for name, how in folds}

    assert opened(page([found], {}, {"b": held(failures=1)})) == {
        "a": False, "b": True, "c": True, "d": False, "e": False
    }  # fmt: skip
    few = results(*(r for n in names[:3] for r in pair(50, op=n)))
    assert opened(page([few], {})) == {"a": True, "b": True, "c": True}


def test_rows_of_a_busy_machine_are_marked_and_others_are_not() -> None:
    quiet = results(*pair(50))
    assert "is-busy" not in page([quiet], {}).partition("<body>")[2]
    busy = results(*pair(50), *pair(50, op="turn", run=1))
    busy.runs.append({**busy.runs[0], "load": 4.3})
    text = page([busy], {}).partition("<body>")[2]
    turn, twist = (
        text.partition(f'<section id="op-{name}"')[2].partition("</section>")[0] for name in ("turn", "twist")
    )
    assert turn.count("is-busy") == 4
    assert "busy, load 4.3" in turn
    assert "believe the ratios, not the times" in turn
    assert "is-busy" not in twist


def test_another_functions_cost_is_called_so_wherever_it_stands() -> None:
    rows = []
    for size in (256, 1 << 14, 1 << 20):
        rows += [*pair(50, size=size), row("bigger", "rival", 20, size=size, same=False)]
    text = page([results(*rows)], {})
    bars, sizes, table = (text.partition(start)[2] for start in ('class="bars"', "How time grows", "All figures"))
    assert "another function, for scale" in bars
    assert "bigger (another function)" in sizes
    assert re.search(r'data-tip="bigger, n = 256: [^"]*, another function"', sizes)
    assert "<td>another function</td>" in table
    assert "5.0× faster" not in text


def test_points_that_would_hide_each_other_stand_side_by_side() -> None:
    points = [(100.0, 50.0), (100.0, 50.0), (102.0, 51.0), (100.0, 50.0), (300.0, 50.0)]
    places = apart(points)
    assert (places[0], places[-1]) == (100.0, 300.0)
    assert len({round(x / 5) for x in places}) == len(points)
    alike = results(*pair(100))
    assert page([alike], {}).count('class="leader"') == 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@needs_browser
def test_a_link_unfolds_what_it_leads_to_and_no_pill_wraps(tmp_path: Path, browser: Browser) -> None:
    names = [f"operator_{i}" for i in range(6)]
    found = results(*(r for n in names for r in pair(50, op=n)))
    found.runs[0]["load"] = 3.0
    write_report(tmp_path / "r.html", [found], {}, dict.fromkeys(names, held(cases=1234)))
    for width in (360, 390, 768, 1280):
        browser.open(tmp_path / "r.html", width=width, height=800, phone=width < 500)
        assert browser.run("document.documentElement.scrollWidth") <= width
        tall = (
            "[...document.querySelectorAll('.badge')].filter(b => b.getClientRects().length > 1 || b.offsetHeight > 30)"
        )
        assert browser.run(f"{tall}.length") == 0
        cells = "[...document.querySelectorAll('#overview td:nth-child(2)')].map(c => c.offsetHeight)"
        assert max(browser.run(cells)) < 70  # what it computes takes two lines at most, or none
    fold = "document.querySelector('#op-operator_4 > details')"
    assert not browser.run(f"{fold}.open")
    browser.run("document.querySelector('nav a[href=\"#op-operator_4\"]').click()")
    assert browser.run(f"{fold}.open")
    assert browser.errors == []
