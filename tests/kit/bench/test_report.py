"""The report: one file, which a browser opens from disk."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import opwright as ow
from opwright.cli.commands import app
from opwright.kit.bench.checked import Checked
from opwright.kit.bench.report import verdicts, write_report
from opwright.kit.bench.report.html import el
from tests.kit.bench.browser import CHROMIUM, Browser
from tests.kit.bench.recorded import CHECK, failed, results, row, whole

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report(file, [whole()], {"turn": ow.axpby}, {"twist": Checked(CHECK["results"])})
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


def test_text_from_operators_is_escaped(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    for bad in ("<script>alert", "<img", "<em>rival", "<i>once", "Test <b>"):
        assert bad not in text
    for shown in ("&lt;script&gt;alert(1)", "a &lt;em&gt;rival&lt;/em&gt;", "x twisted &lt;i&gt;once&lt;/i&gt;."):
        assert shown in text
    assert el("a", '"<', title='"<') == '<a title="&quot;&lt;">&quot;&lt;</a>'


def test_a_report_is_one_file_that_asks_the_network_for_nothing(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!#)""", text)
    assert "@import" not in text
    assert "url(" not in text
    assert len(text) < 400_000


def test_a_report_says_what_failed_and_how_to_see_it_again(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert "1 of 3 properties fail" in text
    assert "proved:" not in text
    assert "opwright check twist --seed 0" in text
    assert "fails in 1 of 12 cases" in text
    assert "skipped: not asked &lt;b&gt;for" in text
    assert "wrong: the result is off by 1e-1" in text
    assert "not checked" in text


def test_a_report_of_failures_alone_still_opens(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", [results(failed("eager", "reference", "timeout", "not done after 3 s"))], {})
    assert "timeout" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_sources_stand_beside_each_other(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert "OPWRIGHT_KERNEL(axpby, CPU, axpby_cpu);" in text
    assert "return a * x + b * y" in text


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_in_a_browser_and_shows_every_operator(report: Path, browser: Browser, dark: bool) -> None:
    browser.open(report, dark=dark)
    assert browser.run("[...document.querySelectorAll('.operator')].map(s => s.id)") == ["op-turn", "op-twist"]
    assert browser.run("document.querySelectorAll('svg.chart').length") >= 4
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 200) is dark
    assert browser.errors == []
    assert {url.partition(":")[0] for url in browser.requests} == {"file"}


@needs_browser
def test_text_stands_out_from_its_ground(report: Path, browser: Browser) -> None:
    """WCAG AA: 4.5 to 1 for text, in light and dark."""
    script = """(() => {
      const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const parse = s => s.match(/[\\d.]+/g).map(Number);
      const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
      const low = [];
      for (const e of document.querySelectorAll('p, a, th, td, span, strong, dt, dd, summary, button, h1, h2, h3, figcaption, code')) {
        if (!e.textContent.trim() || !e.offsetParent) continue;
        const [a, b] = [light(parse(getComputedStyle(e).color).slice(0, 3)), light(ground(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) low.push(`${e.className || e.tagName}: ${e.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
      }
      return [...new Set(low)];
    })()"""  # noqa: E501
    for dark in (False, True):
        browser.open(report, dark=dark)
        assert browser.run(script) == []


@needs_browser
def test_a_phone_needs_no_sideways_scrolling(report: Path, browser: Browser) -> None:
    browser.open(report, width=360, height=740, phone=True)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    heights = browser.run("[...document.querySelectorAll('svg.chart text')].map(t => t.getBoundingClientRect().height)")
    assert len([h for h in heights if h]) > 20
    assert min(h for h in heights if h) > 9


@needs_browser
def test_picking_a_case_shows_it_alone(report: Path, browser: Browser) -> None:
    browser.open(report)
    shown = "[...document.querySelectorAll('#op-twist .case')].filter(c => !c.hidden).map(c => c.id)"
    assert browser.run(shown) == ["twist-0"]
    picker = "document.querySelector('#op-twist select')"
    browser.run(f"(s => {{ s.value = 'twist-1'; s.dispatchEvent(new Event('change')) }})({picker})")
    assert browser.run(shown) == ["twist-1"]


@needs_browser
def test_plots_answer_the_pointer(report: Path, browser: Browser) -> None:
    browser.open(report)
    browser.run("document.querySelector('#op-turn .chart').scrollIntoView({block: 'center', behavior: 'instant'})")
    place = browser.run("(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('#op-turn .chart [data-series=opwright] .mark').getBoundingClientRect())")  # noqa: E501  # fmt: skip
    assert browser.run("document.getElementById('tip').hidden")
    browser.hover(*place)
    assert "opwright, forward" in browser.run("document.getElementById('tip').textContent")
    browser.hover(2, 2)
    assert browser.run("document.getElementById('tip').hidden")


@needs_browser
def test_a_legend_hides_and_shows_its_series(report: Path, browser: Browser) -> None:
    browser.open(report)
    visible = "getComputedStyle(document.querySelector('#op-turn .chart [data-series=compiled]')).display !== 'none'"
    button = "document.querySelector('#op-turn [data-toggle=compiled]')"
    assert browser.run(visible)
    browser.run(f"{button}.click()")
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "false"
    assert not browser.run(visible)
    browser.run(f"{button}.focus()")
    browser.press(" ")
    assert browser.run(visible)


@needs_browser
def test_a_keyboard_reaches_every_point(report: Path, browser: Browser) -> None:
    browser.open(report)
    browser.run("document.querySelector('#op-turn .chart').focus()")
    seen = []
    for _ in range(3):
        browser.press("ArrowRight")
        seen.append(browser.run("document.getElementById('tip').textContent"))
    assert len(set(seen)) == 3
    browser.press("ArrowLeft")
    assert browser.run("document.getElementById('tip').textContent") == seen[1]
    browser.press("Escape")
    assert browser.run("document.getElementById('tip').hidden")


@needs_browser
def test_what_a_screen_reader_meets_has_a_name(report: Path, browser: Browser) -> None:
    browser.open(report)
    browser.call("Accessibility.enable")
    nodes: list[dict[str, Any]] = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = ("button", "combobox", "link", "region", "table", "navigation", "heading")
    roles = set()
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in named and not node.get("ignored"):
            roles.add(role)
            assert node.get("name", {}).get("value"), node
    assert set(named) <= roles
    levels = browser.run("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


@needs_browser
def test_the_theme_can_be_chosen(report: Path, browser: Browser) -> None:
    browser.open(report)
    for expected in ("light", "dark", "system"):
        browser.run("document.getElementById('theme').click()")
        assert browser.run("document.getElementById('theme').textContent") == f"theme: {expected}"
        assert browser.run("document.documentElement.dataset.theme ?? 'system'") == expected


def test_the_command_makes_it_from_stored_results(tmp_path: Path) -> None:
    whole().save(tmp_path / "kept.json")
    (tmp_path / "check.json").write_text(json.dumps(CHECK))
    out = tmp_path / "out.html"
    options = ["report", "--results", str(tmp_path / "kept.json"), "--check", str(tmp_path / "check.json")]
    done = CliRunner().invoke(app, [*options, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "twist" in out.read_text(encoding="utf-8")


def test_the_command_says_when_there_is_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no results to report on; run `opwright bench` first"):
        CliRunner().invoke(app, ["report", "--results", str(tmp_path)], catch_exceptions=False)
    results(row("eager", "reference", 1.0)).save(tmp_path / "kept.json")
    (tmp_path / "check.json").write_text("[]")
    with pytest.raises(ValueError, match="is not what `opwright check --json` writes"):
        CliRunner().invoke(
            app,
            ["report", "--results", str(tmp_path / "kept.json"), "--check", str(tmp_path / "check.json")],
            catch_exceptions=False,
        )


def test_what_fails_in_a_saving_form_is_shown() -> None:
    results = [
        {"op": "gate", "property": "forward", "cases": 3, "failures": []},
        {"op": "gate_saving", "property": "forward", "cases": 3, "failures": [{"message": "off by 1"}]},
        {"op": "gate_saving_backward", "property": "forward", "cases": 3, "failures": []},
        {"op": "other", "property": "forward", "cases": 3, "failures": []},
    ]
    found = verdicts.results_of(results, "gate")
    assert found == results[:3]
    assert "1 of 3 properties fail" in str(verdicts.badge(Checked(found)))
    assert "off by 1" in str(verdicts.verdicts(Checked(found), "gate"))
