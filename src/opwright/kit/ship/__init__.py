"""From built libraries to files that other machines can use."""
