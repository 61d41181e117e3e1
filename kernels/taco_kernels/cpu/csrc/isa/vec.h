// Includes the vectors (also of 8-bit floats), and tiles if there are any, of the instruction set
// that is being compiled for.
#pragma once

#if defined(TACO_EMULATED)
#include "isa/vec_emulated.h"
#elif defined(__AVX512F__)
#include "isa/vec_avx512.h"
#else
#include "isa/vec_avx2.h"
#endif

#include "isa/float8.h"

#if defined(TACO_EMULATE_AMX)
#include "isa/tiles_emulated.h"
#define TACO_HAS_TILES 1
#elif defined(__AMX_TILE__)
#include "isa/tiles_amx.h"
#define TACO_HAS_TILES 1
#endif
