"""Pictures, recordings and films of a policy."""
