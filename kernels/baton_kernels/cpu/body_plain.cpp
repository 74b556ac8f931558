// The body of plain loops: the measure of all others.
#define BODY plain
#include "lanes_plain.h"
#include "body.h"
BATON_BODY
