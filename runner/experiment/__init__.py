"""Build, train, evaluate and record one experiment."""
