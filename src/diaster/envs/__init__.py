"""Environments: made, made episodic, and isolated in processes. No JAX in here."""
