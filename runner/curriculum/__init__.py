"""Curricula: an environment's options as tasks, drawn for each episode according to the results so far."""
