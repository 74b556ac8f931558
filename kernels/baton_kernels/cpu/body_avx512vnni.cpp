// Integer products with vpdpbusd; everything else is avx512's.
#define BODY avx512vnni
#include "lanes_avx512.h"
#include "body.h"
BATON_BODY
