/* A decoding step as a list of instructions on rows of floats: one call, one team of threads.

   Values lie in an arena as fp32, rounded to bf16 after each operation if the model computes in bf16, so that they
   round where torch's operations do. Sums of a linear map go along the inner size in order, whatever the number of rows.

   L rows, K inner size, N outputs of a map, H query heads, G key heads, C slots, D channels of a head.

   One translation unit, each header of which uses those above it. */

#include "vectors.h"
#include "team.h"
#include "instructions.h"
#include "products.h"
#include "level_scales.h"
#include "levels.h"
#include "level_products.h"
#include "maps.h"
#include "attention.h"
#include "block_products.h"
#include "blocks.h"
#include "step.h"
#include "rows.h"
#include "verdicts.h"
#include "experts.h"
#include "passes.h"
#include "layout.h"
