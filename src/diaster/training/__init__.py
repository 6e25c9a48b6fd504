"""A run from its settings to its results: resolve, loop, resume, evaluate, show progress."""
