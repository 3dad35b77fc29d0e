"""ftsup keeps a long PyTorch training job alive on a Slurm cluster, for a plain user with no admin rights."""
