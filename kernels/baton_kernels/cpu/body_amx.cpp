// Products and attention of the path amx, and integer products of many rows, with matrix tiles.
#define BODY amx
#include "lanes_avx512.h"
#include "body.h"
BATON_BODY
