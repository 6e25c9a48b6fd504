"""Nets as plain records of arrays: perceptrons, recurrent cells, and the scan of the GRU."""
