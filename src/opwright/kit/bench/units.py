"""Times and sizes as a person reads them."""

from __future__ import annotations

import re


def spell_us(us: float) -> str:
    """Microseconds with three digits and a fitting unit.

    >>> spell_us(0.4), spell_us(12.345), spell_us(4321), spell_us(2e6)
    ('0.40 µs', '12.3 µs', '4.32 ms', '2.00 s')
    """
    for unit, size in (("µs", 1.0), ("ms", 1e3), ("s", 1e6)):
        if us / size < 999.5 or unit == "s":
            return f"{_digits(us / size)} {unit}"
    raise AssertionError


def spell_bytes(n: float) -> str:
    """Bytes with three digits and a fitting unit.

    >>> spell_bytes(0), spell_bytes(2048), spell_bytes(12 << 20)
    ('0', '2.00 KiB', '12.0 MiB')
    """
    if not n:
        return "0"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1000 or unit == "GiB":
            return f"{n:.0f} B" if unit == "B" else f"{_digits(n)} {unit}"
        n /= 1024
    raise AssertionError


def spell_rate(rate: float, unit: str) -> str:
    """A rate with an SI prefix.

    >>> spell_rate(12.3e9, "B/s"), spell_rate(4.2e12, "FLOP/s")
    ('12.3 GB/s', '4.20 TFLOP/s')
    """
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if rate >= size:
            return f"{_digits(rate / size)} {prefix}{unit}"
    return f"{_digits(rate)} {unit}"


def spell_share(share: float | None) -> str:
    """A share of the machine's limit. One beyond all noise says that the limit was measured in a busy moment.

    >>> spell_share(0.456), spell_share(1.02), spell_share(2.6), spell_share(None)
    ('46%', '100%', '>100%', '')
    """
    if share is None:
        return ""
    return ">100%" if share > 1.05 else f"{min(share, 1.0):.0%}"


def spell_case(name: str) -> str:
    """A case's name with its powers set as powers.

    >>> spell_case("contiguous 2^20")
    'contiguous 2²⁰'
    """
    return re.sub(r"\b2\^(\d+)", lambda m: "2" + m[1].translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")), name)


def _digits(x: float) -> str:
    return f"{x:.2f}" if x < 9.995 else f"{x:.1f}" if x < 99.95 else f"{x:.0f}"
