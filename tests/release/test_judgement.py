"""The checklist's judgement, on made-up releases: each step must be able to fail."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import release.__main__ as checklist
from release import api, building, changelog, steps, stored, versions
from release.api.difference import Weight
from release.steps import Context, Found

ROOT = Path(__file__).resolve().parents[2]

TODAY = datetime.date(2027, 3, 1)


@pytest.mark.parametrize(
    "last, version, weight, why",
    [
        (None, "0.1.0", "breaking", None),
        ("0.1.0", "0.1.1", None, None),
        ("0.1.0", "0.2.0", None, None),  # more than is needed is a choice
        ("0.1.0", "0.2.0", "additive", None),
        ("0.1.0", "0.2.0", "breaking", None),
        ("0.1.0", "1.0.0", "breaking", None),
        ("1.4.2", "1.4.3", None, None),
        ("1.4.2", "1.5.0", "additive", None),
        ("1.4.2", "2.0.0", "breaking", None),
        ("0.1.0", "0.1.0", None, "0.1.0 is not newer than 0.1.0, which is released"),
        ("0.10.0", "0.9.0", "breaking", "not newer"),
        ("0.1.0", "0.1.1", "additive", "changed (additive), which asks for a minor version: 0.2.0, not 0.1.1"),
        ("0.1.0", "0.1.1", "breaking", "asks for a minor version"),
        ("1.4.2", "1.5.0", "breaking", "asks for a major version: 2.0.0, not 1.5.0"),
        ("0.1.0", "0.3.0", "additive", "skips numbers: after 0.1.0 comes 0.1.1, 0.2.0, 1.0.0"),
        ("0.1.4", "0.2.4", "additive", "skips numbers"),
    ],
)
def test_a_version_follows_from_the_last_and_the_change(
    last: str | None, version: str, weight: Weight | None, why: str | None
) -> None:
    said = versions.refuse(None if last is None else versions.parse(last), versions.parse(version), weight)
    if why is None:
        assert said is None
    else:
        assert said is not None
        assert why in said


@pytest.mark.parametrize("text", ["0.1", "0.1.0rc1", "v0.1.0", "0.01.0", "0.1.0.dev1", ""])
def test_a_version_has_three_numbers(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be MAJOR\.MINOR\.PATCH"):
        versions.parse(text)


@pytest.mark.parametrize(
    "text, why",
    [
        ("## 0.2.0 (2027-03-01)\n- new\n\n## 0.1.0 (2026-11-20)\n- old", []),
        ("## 0.2.0 (unreleased)\n- new", ["0.2.0 has no date, it says (unreleased)"]),
        ("## 0.2.0\n- new", ["0.2.0 has no date, it says ()"]),
        ("## 0.2.0 (2027-13-01)\n- new", ["0.2.0 has no date"]),
        ("## 0.2.0 (2027-03-02)\n- new", ["0.2.0 is dated 2027-03-02, which is to come"]),
        ("## 0.2.0 (2027-03-01)\n\n## 0.1.0 (2026-11-20)\n- old", ["the entry of 0.2.0 is empty"]),
        ("## 0.1.0 (2026-11-20)\n- old", ["its newest entry is 0.1.0, not 0.2.0"]),
        ("", ["its newest entry is nothing, not 0.2.0"]),
        ("## Unreleased\n- a\n\n## 0.2.0 (2027-03-01)\n- new", ["newest entry is Unreleased", "leftover, Unreleased"]),
        ("## 0.2.0 (2027-03-01)\n- new\n\n## 0.1.1 (unreleased)\n- b", ["there is a leftover, 0.1.1 (unreleased)"]),
    ],
)
def test_the_changelog_is_that_of_a_release(text: str, why: list[str]) -> None:
    found = changelog.faults(changelog.read(f"# Changelog\n\n{text}\n"), "0.2.0", TODAY)
    assert len(found) == len(why), found
    for (what, do), expected in zip(found, why, strict=True):
        assert expected in what
        assert do


def test_the_last_release_is_the_newest_with_a_date() -> None:
    text = "## 0.3.0 (2027-03-01)\n## 0.2.1 (unreleased)\n## 0.2.0 (2027-01-01)\n## 0.1.0 (2026-11-20)\n"
    assert changelog.last(changelog.read(text), "0.3.0") == "0.2.0"
    assert changelog.last(changelog.read("## 0.1.0 (2026-11-20)\n"), "0.1.0") is None


RUN = {"date": "2027-02-20", "failed": 0}
TRIED = {"2.10.0": RUN, "2.15.0": RUN}
OLD = {"date": "2027-01-20"}
OPINFO = {"date": "2027-02-20", "counts": {"findings": 0}}
ON_GPU: dict[str, Any] = {"trees": {}, "rows": {}}
MEASURED = {"date": "2027-02-20", "versions": {"opwright": "0.2.0"}}


def store(root: Path, **changed: Any) -> Path:
    """A tree with stored results; `changed` says which differ, None for those that are missing."""
    files = {"versions": TRIED, "opinfo": OPINFO, "on_gpu": ON_GPU, "calls": MEASURED, "cuda": MEASURED} | changed
    places = {"versions": "tests/versions.json", "opinfo": "tests/opinfo/results.json", "on_gpu": stored.ON_GPU}
    for name, content in files.items():
        file = root / places.get(name, f"benchmarks/results/{name}.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return root


def test_every_result_of_this_tree_can_be_judged() -> None:
    found = list(stored.faults(ROOT, "0.0.0", ("2.10", "2.15"), datetime.date(2030, 1, 1), 30))
    assert len({what.split(":")[0] for what, _ in found}) >= len(stored.places(ROOT))


def test_what_is_named_to_make_a_figure_again_makes_it() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(RESULTS)", stored.RESULTS)
    targets = {part.split(":")[0]: part for part in makefile.split("\n\n")}
    of_a_machine = {f"{stored.RESULTS}/intel-xeon-2.json"}  # which `opwright bench` names after the machine
    for place, again in stored.places(ROOT):
        if place.startswith(stored.RESULTS) and place not in of_a_machine and again.startswith("make "):
            assert place in targets[again.removeprefix("make ")], place


@pytest.mark.parametrize(
    "changed, what, do",
    [
        ({"versions": None}, "tests/versions.json is missing", "make test-versions"),
        ({"versions": "{"}, "tests/versions.json cannot be read", "make test-versions"),
        ({"versions": {"2.10.0": RUN}}, "torch 2.15 was not tried", "make test-versions"),
        ({"versions": {**TRIED, "2.13.0": {**RUN, "failed": 2}}}, "2 tests failed under torch 2.13.0", ""),
        ({"versions": {**TRIED, "2.10.0": RUN | OLD}}, "it is 40 days old, of 2027-01-20", ""),
        ({"opinfo": None}, "tests/opinfo/results.json is missing", "make test-opinfo"),
        ({"opinfo": {**OPINFO, "counts": {"findings": 3}}}, "results.json: 3 findings", "make test-opinfo"),
        ({"opinfo": {**OPINFO, "date": "2026-12-01"}}, "90 days old", "make test-opinfo"),
        ({"on_gpu": None}, "tests/on_gpu.json is missing", "make test-cuda"),
        ({"calls": {**MEASURED, "date": "2026-12-01"}}, "calls.json: it is 90 days old", "make bench"),
        ({"calls": {"rows": []}}, "calls.json: it names no date", "make bench"),
        ({"calls": {**MEASURED, "versions": {"opwright": "0.1.0"}}}, "of opwright 0.1.0, and this is", "make bench"),
        ({"calls": {"runs": [MEASURED, {**MEASURED, "date": "2026-12-01"}]}}, "90 days old", "make bench"),
        ({"cuda": {**MEASURED, "date": "2026-12-01"}}, "cuda.json: it is 90 days old", "make bench-cuda"),
        ({"calls": {"runs": {"eager": 1}, **MEASURED, "date": "2026-12-01"}}, "90 days old", "make bench"),
        ({"soak": {**MEASURED, "alarms": [{"op": "spmm"}]}}, "soak.json: 1 false alarms", "make soak"),
        ({"right": {**MEASURED, "alarms": 2}}, "right.json: 2 false alarms", "make soak"),
        ({"calls": None, "cuda": None}, "benchmarks/results/*.json is missing", "make bench"),
    ],
)  # fmt: skip
def test_stored_results_must_be_there_fresh_and_good(
    changed: dict[str, Any], what: str, do: str, tmp_path: Path
) -> None:
    (fault,) = stored.faults(store(tmp_path, **changed), "0.2.0", ("2.10", "2.15"), TODAY, 30)
    assert what in fault[0]
    assert do in fault[1]


def test_good_results_are_no_fault(tmp_path: Path) -> None:
    root = store(tmp_path, series={"runs": [{**MEASURED, "date": "2026-01-01"}, MEASURED]})
    (root / "benchmarks" / "results" / "checked-here.json").write_text("{}", encoding="utf-8")
    assert stored.faults(root, "0.2.0", ("2.10", "2.15"), TODAY, 30) == []


@pytest.fixture
def repository(tmp_path: Path) -> Context:
    """A repository with a release 0.1.0 behind it, and public names that it was released with."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "CHANGELOG.md").write_text("## 0.2.0 (2027-03-01)\n- a\n## 0.1.0 (2026-11-20)\n- b\n", encoding="utf-8")
    (tmp_path / "tests" / "api.txt").write_text(api.FILE.read_text(encoding="utf-8"), encoding="utf-8")
    context = Context(tmp_path, "0.2.0", TODAY)
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "--quiet"), ("add", "."), (*identity, "commit", "--quiet", "-m", "a"), ("tag", "v0.1.0")):
        assert context.git(*command) is not None
    return context


def test_a_tree_with_changes_is_no_release(repository: Context, tmp_path: Path) -> None:
    assert steps.tree(repository).faults == []
    (repository.root / "new.py").write_text("", encoding="utf-8")
    ((what, do),) = steps.tree(repository).faults
    assert "1 files differ from what is committed: new.py" in what
    assert do == "commit or stash"


def test_the_version_is_held_against_the_names_of_the_last_tag(repository: Context) -> None:
    assert steps.version(repository).faults == []
    with (repository.root / "tests" / "api.txt").open("a", encoding="utf-8") as names:
        names.write("function   opwright.new_one()\n")
    assert steps.version(repository).faults == []
    repository.version = "0.1.1"
    (repository.root / "CHANGELOG.md").write_text("## 0.1.0 (2026-11-20)\n- b\n", encoding="utf-8")
    ((what, _),) = steps.version(repository).faults
    assert "asks for a minor version: 0.2.0, not 0.1.1" in what
    assert "function opwright.new_one is new" in what
    repository.version = "0.2"
    assert "must be MAJOR.MINOR.PATCH" in steps.version(repository).faults[0][0]
    repository.version, repository.tag = "0.2.0", "v0.2.1"
    assert "the tag is v0.2.1, the version 0.2.0" in steps.version(repository).faults[0][0]
    repository.tag = "v0.2.0"
    assert steps.version(repository).faults == []
    repository.git("tag", "--delete", "v0.1.0")
    assert "there is no tag v0.1.0" in steps.version(repository).faults[0][0]


def test_a_tag_that_exists_is_not_given_again(repository: Context) -> None:
    said = steps.publish(repository).said
    assert 'git tag --annotate v0.2.0 --message "opwright 0.2.0"' in said
    repository.version = "0.1.0"
    assert "the tag v0.1.0 exists" in steps.publish(repository).faults[0][0]


def test_stale_names_and_pages_are_found(repository: Context) -> None:
    assert steps.names(repository).faults == []
    with (repository.root / "tests" / "api.txt").open("a", encoding="utf-8") as names:
        names.write("function   opwright.never_was()\n")
    ((what, do),) = steps.names(repository).faults
    assert "function opwright.never_was is gone" in what
    assert do == "python -m release.api"
    assert "docs/reference is stale: axpby, " in steps.docs(repository).faults[0][0]  # there are none


def test_a_wheel_without_a_source_is_found() -> None:
    tracked = ["src/opwright/ops/axpby/cpu.cpp", "src/opwright/py.typed", "README.md"]
    assert building.left_out(tracked, ["opwright/py.typed"]) == ["src/opwright/ops/axpby/cpu.cpp"]
    assert building.left_out(tracked, ["opwright/py.typed", "opwright/ops/axpby/cpu.cpp"]) == []


def test_a_build_that_fails_is_a_fault_with_its_last_words(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    with pytest.raises(building.Broken, match="git archive"):
        building.build(tmp_path, tmp_path / "dist")


def test_the_checklist_ends_with_1_when_a_step_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(context: Context) -> Found:
        raise building.Broken("the build failed", "mend it")

    monkeypatch.setattr(
        checklist, "STEPS", {"fine": lambda c: Found("well"), "build": broken, "publish": lambda c: Found("git push")}
    )
    assert checklist.main([]) == 1
    said = capsys.readouterr().out
    assert "✓ fine: well\n✗ build: the build failed\n    → mend it\n" in said
    assert "git push" not in said
    assert checklist.main(["--only", "fine"]) == 0
    assert "build" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        checklist.main(["--only", "nothing"])


def test_a_dry_run_builds_nothing(repository: Context) -> None:
    repository.dry_run = True
    assert "would build" in steps.build(repository).said
    assert "would install" in steps.install(repository).said
    assert not repository.dist.exists()
    repository.dry_run = False
    assert "dist/ has no wheel of 0.2.0" in steps.install(repository).faults[0][0]


@pytest.mark.slow
def test_the_wheel_of_a_release_runs_an_operator(tmp_path: Path) -> None:
    sdist, wheel = building.build(api.ROOT, tmp_path)
    assert sdist.name.endswith(".tar.gz")
    assert not building.left_out((Context().git("ls-files", "src") or "").splitlines(), building.names(wheel))
    assert "runs there: " in building.prove(wheel)
