"""Many runs of one experiment."""
