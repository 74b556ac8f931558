"""Digests of every tensor of a GGUF file as fp32, by the two readers in use elsewhere, as JSON. It runs in an
environment of its own (`make real`)."""

import hashlib
import json
import sys

import libgguf
import numpy as np
from gguf import GGUFReader, dequantize

found = {}
for tensor in GGUFReader(sys.argv[1]).tensors:
    mine = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
    row = int(tensor.shape[0])
    other = mine if tensor.tensor_type == 0 else libgguf.dequantize_rows(tensor.data, int(tensor.tensor_type), row)
    both = [hashlib.sha256(np.ascontiguousarray(each, np.float32).tobytes()).hexdigest() for each in (mine, other)]
    found[tensor.name] = both
print(json.dumps(found))
