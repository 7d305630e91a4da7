"""Checks after a build that the kernels in libraries have the types of their operators: PyTorch hands a kernel 64 bits
for each argument, and one of other types would misread them without a word.

    python verify.py EXPECTED NAME LIBRARY …

Needs the standard library alone, so that it costs a build nothing.
"""

import re
import sys
from pathlib import Path

RECORD = re.compile(rb"\x01opwright kernel\x01([^\0]*)\0+\x02([^\0]*)\0+\x03([^\0]*)\0")


def main() -> int:
    expected, *named = sys.argv[1:]
    found: dict[tuple[str, str, str], tuple[str, str, str, str]] = {}
    wrong = []
    for name, library in zip(named[::2], named[1::2], strict=True):
        for record, results, parameters in RECORD.findall(Path(library).read_bytes()):
            op, device, function, file, line = (part.decode(errors="replace") for part in record.split(b"\1"))
            place = f"{file}:{line}"
            taken = parameters.decode().replace("!", "")  # what marks those that it may write to
            first = found.setdefault((name, op, device), (results.decode(), taken, function, place))
            if first[3] != place:
                wrong.append(f"{place}: {op} is bound on {device.upper()} here and in {first[3]}; keep one")
    for row in Path(expected).read_text(encoding="utf-8").splitlines():
        name, op, device, file, results, parameters = row.split("\t")
        if (name, op, device) not in found:
            wrong.append(
                f"{file}: it binds no kernel to {op}; add OPWRIGHT_KERNEL({op}, {device.upper()}, your_function);"
            )
            continue
        has_results, has_parameters, function, place = found[name, op, device]
        several = results.split(",")
        listed = has_results == "Tensor[]" and len(several) > 1 and {*several} == {"Tensor"}
        if has_parameters != parameters or not (listed or has_results == results):
            wrong.append(
                f"{place}: {function} takes ({has_parameters}) and returns ({has_results}); the schema of {op} has "
                f"({parameters}) and ({results})"
            )
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
