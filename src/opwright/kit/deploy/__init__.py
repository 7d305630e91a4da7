"""Models that leave this machine, with the operators that they call."""
