"""What follows from an operator: gradients and the in-place form."""
