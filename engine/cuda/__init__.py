"""The engine on a CUDA device: the same plans, pages and sampling rules as on a CPU, by Triton kernels."""
