"""`python -m opwright` is the command line."""

from opwright.cli import main

main()
