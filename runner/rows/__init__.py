"""Rows of running episodes: written step by step, read by the connectors of env pipelines, cut into column blocks."""
