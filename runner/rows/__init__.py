"""Rows of running episodes: written step by step, read by env connectors, and cut into column blocks."""
