"""Files of recorded data: found, opened, and read as raw rows."""
