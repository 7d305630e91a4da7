"""PyTorch's own operators, made into operators of ours and held against the plain functions.

PyTorch describes some 700 of its operators in its OpInfo database, with samples for each. Every one of them is wrapped
in an annotated function, which is made an operator in two forms, transparent and opaque. Each form is used in many
ways, and what comes out is compared with what the plain function gives. `python -m tests.opinfo --help` says how to
run it.
"""
