// What processors have of their own outside of the bodies: how a thread rounds, how it waits, and numbers of 16 bits.
#pragma once
#ifdef __aarch64__
#include "processor_aarch64.h"
#else
#include "processor_x86_64.h"
#endif
