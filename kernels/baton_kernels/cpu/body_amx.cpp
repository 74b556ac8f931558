// Products and attention with matrix tiles; everything else is avx512's.
#define BODY amx
#include "lanes_avx512.h"
#include "body.h"
BATON_BODY
