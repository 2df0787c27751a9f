"""Runs in stores: copies of run dirs on object storage, or on any other file system of fsspec."""
