"""Find and open files of recorded data, and read their raw rows."""
