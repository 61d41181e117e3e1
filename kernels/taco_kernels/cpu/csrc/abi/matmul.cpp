// C functions of matrix products.

#include "abi/cpu_abi.h"
#include "dispatch/kernel_table.h"
#include "runtime/thread_pool.h"

void taco_pack(TacoPool* pool, const Packing* packings, int64_t count) {
    pool->threads.run([&](Thread& thread) {
        for (int64_t i = 0; i < count; ++i) pool->kernels.pack(thread, packings[i]);
    });
}

void taco_read_rows(TacoPool* pool, const Matrix* matrix, int64_t count, const int64_t* rows,
                    float* out) {
    pool->threads.run(
        [&](Thread& thread) { pool->kernels.read_rows(thread, *matrix, count, rows, out); });
}

void taco_encode_rows(TacoPool* pool, int32_t type, int64_t count, int64_t k, const float* rows,
                      int64_t stride, void* out, RowScale* scales, const ColumnOrder* order) {
    pool->threads.run([&](Thread& thread) {
        pool->kernels.encode_rows(thread, DType(type), count, k, rows, stride, out, scales,
                                  order ? *order : ColumnOrder{});
    });
}

void taco_encode_operands(TacoPool* pool, int64_t count, int64_t k, const void* rows, void* out,
                          RowScale* scales, const ColumnOrder* order) {
    pool->threads.run([&](Thread& thread) {
        pool->kernels.encode_operands(thread, count, k, rows, out, scales,
                                      order ? *order : ColumnOrder{});
    });
}

void taco_multiply(TacoPool* pool, const Product* products, int64_t count) {
    pool->threads.run([&](Thread& thread) {
        for (int64_t i = 0; i < count; ++i) pool->kernels.multiply(thread, products[i]);
    });
}

void taco_multiply_heads(TacoPool* pool, const HeadProduct* product) {
    pool->threads.run([&](Thread& thread) { pool->kernels.multiply_heads(thread, *product); });
}

void taco_multiply_argmax(TacoPool* pool, const Rows* rows, const Matrix* matrix, uint64_t* ranks,
                          int32_t* columns, PartialSum* sums, float* logprobs,
                          const TokenMasks* masks) {
    static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
    pool->threads.run([&](Thread& thread) {
        const Argmax wanted = {reinterpret_cast<std::atomic<uint64_t>*>(ranks),
                               columns,
                               sums,
                               logprobs,
                               LogitTransform{1, 0},
                               masks ? *masks : TokenMasks{}};
        pool->kernels.multiply_argmax(thread, *rows, *matrix, wanted);
    });
}
