"""The files of a checkpoint: safetensors and GGUF, dense and quantized, each format into one canonical form."""
