"""The worlds that a rank program can run in: `real` (processes), `virtual` (a simulated cluster), `jobs` (torchrun and
SLURM). `common` holds what they share. Use them through `spawn` and `simulate`."""
