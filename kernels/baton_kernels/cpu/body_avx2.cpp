// The body for every x86-64-v3 processor.
#define BODY avx2
#include "lanes_avx2.h"
#include "body.h"
BATON_BODY
