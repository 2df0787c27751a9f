"""Recorded data in the formats of others, decoded without pickle: `ColumnBlock`s, or plain Arrow columns for tables."""
