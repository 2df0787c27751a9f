"""Write recorded data to files, from a run or by conversion from another format."""
