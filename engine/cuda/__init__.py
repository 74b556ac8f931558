"""The engine on a CUDA device: the plans, pages and sampling rules of the CPU's, through the Triton kernels."""
