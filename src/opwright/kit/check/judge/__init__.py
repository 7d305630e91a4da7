"""The check for functions that are no operators: a candidate in a process of its own, held against a reference here."""
