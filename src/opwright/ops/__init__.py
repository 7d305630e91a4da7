"""The library: one folder an operator."""
