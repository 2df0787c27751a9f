"""Sources of recorded data: opened, checked, narrowed and summed up."""
