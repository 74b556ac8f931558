// The body for AVX-512 (F, BW, DQ, VL).
#define BODY avx512
#include "lanes_avx512.h"
#include "body.h"
BATON_BODY
