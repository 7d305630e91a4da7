"""A change of the public names is told in words, with the weight it has for users."""

from __future__ import annotations

import pytest

from release.api.difference import compare, told, weight
from release.api.entries import read
from release.api.sources import declarations


@pytest.mark.parametrize(
    "before, now, expected, words",
    [
        ("", "function f()", "additive", "function f is new"),
        ("function f()", "", "breaking", "function f is gone"),
        ("function f(x)", "function f(x, y)", "breaking", "y is new, and must be given"),
        ("function f(x)", "function f(x, y=1)", "additive", "y is new, with a default"),
        ("function f(x)", "function f(x, *, y=1)", "additive", "y is new, with a default"),
        ("function f(x, z=0)", "function f(x, y=1, z=0)", "breaking", "before others"),
        ("function f(x, y)", "function f(x)", "breaking", "y is gone"),
        ("function f(x, y)", "function f(y, x)", "breaking", "the order is y, x"),
        ("function f(x, y=1)", "function f(x, *, y=1)", "breaking", "y can no longer be given by position"),
        ("function f(x, *, y=1)", "function f(x, y=1)", "additive", "y may now be given by position"),
        ("function f(x)", "function f(x, /)", "breaking", "x can no longer be given by keyword"),
        ("function f(x=1)", "function f(x)", "breaking", "x has no default any more"),
        ("function f(x)", "function f(x=1)", "additive", "x has a default now, 1"),
        ("function f(x=1)", "function f(x=2)", "breaking", "the default of x is 2, it was 1"),
        ("function f(x: int)", "function f(x: int | str)", "additive", "x is of type int | str, it was int"),
        ("function f(x: int | str)", "function f(x: int)", "breaking", "x is of type int"),
        ("function f() -> int | None", "function f() -> int", "additive", "it returns int"),
        ("function f() -> int", "function f() -> int | None", "breaking", "it returns int | None"),
        ("function f(d: dict[str, int] = ('a,b', 1))", "function f(d: dict[str, int] = ('a,c', 1))", "breaking", "a,b"),
        ("operator o::f(Tensor x) -> Tensor", "operator o::f(Tensor x, Scalar a=1) -> Tensor", "additive", "a is new"),
        ("operator o::f(Tensor x) -> Tensor", "operator o::f(Tensor? x) -> Tensor", "breaking", "x is of type Tensor?"),
        ("class C(x)", "class C as torch.Tensor", "breaking", "it was (x), and is as torch.Tensor"),
        ("option p --json = None", "option p --json = '-'", "breaking", "it was None, and is '-'"),
        ("", "argument p NAME", "breaking", "argument p NAME is new, and must be given"),
        ("", "argument p NAME = None", "additive", "argument p NAME is new"),
        ("variable OPWRIGHT_X", "", "breaking", "variable OPWRIGHT_X is gone"),
        ("c++ <a.h> o::f: int f()", "c++ <a.h> o::f: int f()\nc++ <a.h> o::f: int f(int)", "additive", "another form"),
        ("c++ <a.h> o::f: int f()", "c++ <a.h> o::f: long f()", "breaking", "it was int f(), and is long f()"),
        # A name that goes while it is deprecated is still served.
        ("function f()", "deprecated f: since 0.3, gone in 0.4", "additive", "warns where it is used"),
        ("function f(x=1)", "function f()\ndeprecated f(x=): since 0.3, gone in 0.4", "additive", "x is deprecated"),
        ("deprecated f: since 0.3, gone in 0.4", "", "breaking", "f, which was deprecated, is gone"),
    ],
)  # fmt: skip
def test_a_change_has_a_weight_and_words(before: str, now: str, expected: str, words: str) -> None:
    changes = compare(read(before), read(now))
    assert weight(changes) == expected
    assert words in told(changes)


def test_what_is_the_same_is_no_change() -> None:
    lines = "function f(x: int = 0, *args: Any, **more: Any) -> int\nclass C\nc++ <a.h> o::f: int f()"
    assert compare(read(lines), read(lines)) == []
    assert weight([]) is None


def test_the_words_say_how_to_accept_a_change() -> None:
    added = told(compare([], read("class C")))
    assert "minor" in added
    assert "python -m release.api" in added
    gone = told(compare(read("class C"), []))
    assert "deprecate" in gone
    assert "major" in gone


def test_a_line_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="must begin with one of module, "):
        read("thing opwright.load")


def test_declarations_of_a_header_are_those_that_kernels_see() -> None:
    header = """
    #define NOISE(x) { x
    namespace opwright { // a comment with { in it
    namespace ow_inner { int hidden(); struct Hidden { int x; }; }
    using torch::stable::Tensor;
    template <class T, class... More>
    inline T twice(const T& x, const More&... more) { if (x) { return x; } return 2 * x; }
    OPWRIGHT_NOINLINE void Layout::method() { call("}"); }
    struct Grid { int blocks; void run() const; };
    struct Sizes { int64_t rows;  // of a matrix
                   int64_t columns = 1; };
    constexpr int grain = 4;
    Tensor with_default(const Tensor& x, const std::optional<Tensor>& bias = {});
    namespace simd { float exp(float x); }
    }
    int outside();
    """
    assert declarations(header) == [
        ("opwright::Tensor", "using torch::stable::Tensor"),
        ("opwright::twice", "template <class T, class... More> T twice(const T& x, const More&... more)"),
        ("opwright::Grid", "struct Grid"),
        ("opwright::Sizes", "struct Sizes { int64_t rows; int64_t columns = 1; }"),
        ("opwright::grain", "constexpr int grain = 4"),
        ("opwright::with_default", "Tensor with_default(const Tensor& x, const std::optional<Tensor>& bias = {})"),
        ("opwright::simd::exp", "float exp(float x)"),
    ]
