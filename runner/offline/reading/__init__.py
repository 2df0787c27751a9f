"""Open, check, narrow and summarise sources of recorded data."""
