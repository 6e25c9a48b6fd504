"""From run directories to curves, statistics, figures and the report. No JAX and no Gymnasium in here."""
