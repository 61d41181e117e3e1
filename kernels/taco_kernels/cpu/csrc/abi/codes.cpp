// C functions of matrices of codes.

#include "abi/cpu_abi.h"
#include "dispatch/kernel_table.h"
#include "matmul/codes/code_packer.h"
#include "runtime/thread_pool.h"

void taco_pack_codes(TacoPool* pool, const CodePacking* packing, const CodeWords* words) {
    const bool widens_pairs = pool->kernels.bf16_operand_bytes == sizeof(float);
    pool->threads.run(
        [&](Thread& thread) { pack_code_panels(thread, *packing, words, widens_pairs); });
}
