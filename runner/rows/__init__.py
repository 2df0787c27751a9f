"""Rows of running episodes: written step by step, read by the pieces of env pipelines, cut into column blocks."""
