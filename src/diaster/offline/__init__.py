"""Data sets of episodes: read, fitted to their returns, given a reward for every step, and written."""
