"""Decode and encode the columns of each format of recorded data, without pickle."""
