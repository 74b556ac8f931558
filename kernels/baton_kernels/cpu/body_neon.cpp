// The body for aarch64 with the dot product of bytes (armv8.2-a+dotprod).
#define BODY neon
#include "lanes_neon.h"
#include "body.h"
BATON_BODY
