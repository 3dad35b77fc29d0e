"""A Slurm for one machine and one user: `sbatch salloc srun squeue scontrol scancel sinfo` over virtual nodes, nothing to start by hand.

    from ftsup.mockslurm import control
    add = control.create(Path("/tmp/mock"), nodes=4, kill_wait_s=2)     # PATH and FTSUP_MOCK_STATE
    subprocess.run(["sbatch", "--parsable", "job.sh"], env=os.environ | add)

There is no daemon: `sbatch` leaves one runner process behind for each job, and the state lies in one file. What it does is what a
real Slurm 22.05 was seen to do; where the two differ, the real one is right (tests/contract).
"""
