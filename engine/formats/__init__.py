"""The files of a checkpoint: safetensors and GGUF, dense and quantized, each quantized format into one canonical form."""
