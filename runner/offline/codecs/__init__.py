"""Columns of recorded data, and how each format stores them: decoded without pickle."""
