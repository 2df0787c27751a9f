"""Formats of recorded data: each class recognises its data, knows the layout and decodes the rows."""
