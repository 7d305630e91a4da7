"""What users meet without importing it: environment variables, and the C++ that kernels are written with.

Read from the source: nothing is compiled or run. Of the C++ a name is public that a page for authors of kernels or the
scaffold uses; the rest of the headers is how these work.
"""

from __future__ import annotations

import re
from pathlib import Path

from release.api.entries import Entry

READS = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\(|variable\()\s*["'](OPWRIGHT_\w+)["']""")
WHOLE = "opwright::aten::"
"""A namespace that the pages name as a whole."""
PAGES = ("kernels.md", "cuda.md", "cookbook.md", "lltm.md")


def entries(root: Path) -> list[Entry]:
    """Environment variables, macros, and the names of the headers."""
    return [*_variables(root), *_headers(root)]


def _variables(root: Path) -> list[Entry]:
    package = root / "src" / "opwright"
    files = [f for f in package.rglob("*") if f.suffix in (".py", ".h", ".cuh", ".cpp", ".cu")]
    names = {name for file in files for name in READS.findall(file.read_text(encoding="utf-8"))}
    return [Entry("variable", name) for name in names]


def words(root: Path) -> set[str]:
    """The identifiers in what authors of kernels read and start from."""
    package = root / "src" / "opwright"
    texts = [re.findall(r"^```.*?^```|`[^`\n]+`", (root / "docs" / page).read_text(encoding="utf-8"), re.M | re.S)
             for page in PAGES]  # fmt: skip
    started = [[f.read_text(encoding="utf-8")] for f in (package / "kit" / "scaffold" / "template").rglob("*.c*")]
    return {word for text in [*texts, *started] for piece in text for word in re.findall(r"[A-Za-z_]\w+", piece)}


def _headers(root: Path) -> list[Entry]:
    folder, used, found = root / "src" / "opwright" / "include" / "opwright", words(root), []
    for file in sorted([*folder.glob("*.h"), *folder.glob("*.cuh")]):
        text = file.read_text(encoding="utf-8")
        for name, parameters in re.findall(r"^#define (OPWRIGHT_\w+)(\([^)]*\))?", text, re.M):
            if name in used:
                found.append(Entry("macro", name, parameters))
        for full, line in declarations(text):
            if full.rpartition("::")[2] in used or full.startswith(WHOLE):
                found.append(Entry("c++", f"<opwright/{file.name}> {full}", f": {line}"))
    return found


def declarations(text: str) -> list[tuple[str, str]]:
    """The public names of a header with their declarations: those of namespace opwright, without its inner one.

    >>> declarations("namespace opwright { struct Row { int n; }; inline int two(int x) { return 2; } }")
    [('opwright::Row', 'struct Row { int n; }'), ('opwright::two', 'int two(int x)')]
    """
    found, spaces, statement, body, depth = [], list[str](), "", "", 0
    for letter in _plain(text):
        if depth:  # in a body, which says how and not what, unless it lists the members that one fills in
            depth += (letter == "{") - (letter == "}")
            body += letter
            if not depth:
                plain = re.match(r"\s*(?:struct|enum)\b", statement) and "(" not in body
                found.append((list(spaces), f"{statement}{{{body}" if plain else statement))
                statement = body = ""
        elif statement.count("(") > statement.count(")"):  # braces among parameters are defaults
            statement += letter
        elif letter == "{" and (space := re.fullmatch(r"\s*(?:inline )?namespace ([\w:]*)\s*", statement)):
            spaces.append(space[1])
            statement = ""
        elif letter == "{":
            depth = 1
        elif letter == "}" and spaces:
            spaces.pop()
            statement = ""
        elif letter == ";":
            found.append((list(spaces), statement))
            statement = ""
        else:
            statement += letter
    named = [("::".join(at), _tidy(line)) for at, line in found if at and at[0].startswith("opwright")]
    public = [(at, line, _name(line)) for at, line in named if "ow_inner" not in at and line]
    return [(f"{at}::{name}", line) for at, line, name in public if name is not None]


def _plain(text: str) -> str:
    """C++ without comments, texts and lines of the preprocessor."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: '""' if m[0][0] == '"' else "", text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", text, flags=re.M)


def _tidy(line: str) -> str:
    """A declaration without what says how it is compiled, so that a function and its declaration read the same."""
    return " ".join(re.sub(r"\b(?:inline|OPWRIGHT_\w*INLINE|__forceinline__)\b", "", line).split())


def _name(line: str) -> str | None:
    """What a declaration declares; None for what has no name of its own, such as a deduction guide."""
    line = re.sub(r"^template <(?:[^<>]|<[^<>]*>)*> ", "", line)
    made = re.match(r"(?:(?:struct|class|enum class|enum|union) (\w+)|using (\w+) =)", line)
    if made:
        return made[1] or made[2]
    if line.startswith("using ") and not line.startswith("using namespace"):
        return line.rpartition("::")[2]
    if line.startswith(("using ", "static_assert", "extern ")):
        return None
    head = line.partition("(")[0] if "(" in line.partition("=")[0] else line.partition("=")[0]
    found = re.search(r"(?<![:\w])(\w+)(?:\[\w*\])?\s*$", head)  # not Layout::contiguous, which its struct declares
    return None if found is None or "operator" in head else found[1]
