"""A run directory: its files, tables, lock, checkpoints and recordings. No JAX and no Gymnasium in here."""
