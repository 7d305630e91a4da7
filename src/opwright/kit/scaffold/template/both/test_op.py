"""What `opwright check` asks of $name, one test a property."""

from pathlib import Path

import opwright as ow
from opwright.testing import checks

test_$name = checks(ow.load(Path(__file__).parent).$name)
