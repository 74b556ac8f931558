// The tiles of body_amx.cpp, emulated: for tests on machines that lack them. Never chosen.
#define BODY tiles
#define BATON_EMULATED_TILES
#include "lanes_avx2.h"
#include "body.h"
BATON_BODY
