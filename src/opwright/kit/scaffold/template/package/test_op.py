"""What `opwright check` asks of $name, one test a property."""

from $package import $name
from opwright.testing import checks

test_$name = checks($name)
