"""A real Slurm on one machine, for the suites that compare ftsup with the original."""
