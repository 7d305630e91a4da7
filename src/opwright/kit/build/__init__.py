"""The build: from an operator's source files to a loaded library, through a cache that is keyed by content."""
