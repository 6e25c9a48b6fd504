"""The compiled updates of all seeds: the only room that knows jit, vmap over seeds and donation."""
