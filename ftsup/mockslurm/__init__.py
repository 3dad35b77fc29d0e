"""A Slurm for one machine and one user: `sbatch srun squeue scontrol scancel sinfo` over virtual nodes, nothing to start by hand.

    add = mockslurm.create(Path("/tmp/mock"), nodes=4, kill_wait_s=2)     # PATH and FTSUP_MOCK_STATE
    subprocess.run(["sbatch", "--parsable", "job.sh"], env=os.environ | add)

There is no daemon: `sbatch` leaves one runner process behind for each job, and the state lies in one file. What it does is what a
real Slurm 22.05 was seen to do; where the two differ, the real one is right (tests/contract).
"""

from __future__ import annotations

from ftsup.mockslurm.control import away, configure, create, environment, node_down, node_up, refuse_requeues, shell_text, status, stop

__all__ = ["away", "configure", "create", "environment", "node_down", "node_up", "refuse_requeues", "shell_text", "status", "stop"]
