// Pair products and attention with vdpbf16ps; everything else is avx512's.
#define BODY avx512bf16
#include "lanes_avx512.h"
#include "body.h"
BATON_BODY
