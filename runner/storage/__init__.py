"""Copies of run dirs on object storage or any other fsspec file system."""
