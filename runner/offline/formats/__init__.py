"""Formats of recorded data: one class each, which recognises its data, knows their layout and decodes them."""
