"""Train batches from recorded data."""
