"""Operators for programs in C++: what a library says of them where no Python does, and typed functions to call them."""
