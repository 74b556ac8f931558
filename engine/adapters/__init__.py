"""Low-rank adapters (LoRA): read from PEFT folders, packed for the kernels, and held by a worker."""
