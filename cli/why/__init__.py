"""`baton explain` and `baton pages`: what a running mesh does, and why."""
