// The ops that work row by row: a row's numbers depend on that row alone.
#pragma once

#include <algorithm>

#include "dispatch/isa_table.h"
#include "elementwise/activation.h"
#include "elementwise/norm.h"
#include "elementwise/rotary.h"
#include "elementwise/row_ops.h"
#include "program/embedding.h"
#include "program/program_args.h"
#include "program/scratch.h"

namespace TACO_ISA {

// The first operand of a row of a buffer, or of the part of a row from operand `k` on.
inline char* operands_of(const Buffer& buffer, const RowBuffer& rows, int64_t row, int64_t k = 0) {
    const int64_t stride = rows.stride / operand_bytes(buffer.type);
    return rows.data + operand_offset(buffer.type, row, stride, k);
}

// Calls body(row) once for each row, as Thread::share. Ends with a barrier.
template <class Body>
void share_rows(Thread& thread, int64_t rows, Body body) {
    const int64_t grain = std::clamp<int64_t>(rows / (4 * thread.count()), 1, 16);
    thread.share(rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) body(row);
    });
}

// Whether an op computes each row of its output from the same row of its inputs alone.
constexpr bool works_by_row(OpKind kind) {
    switch (kind) {
        case OpKind::embed:
        case OpKind::norm:
        case OpKind::rope:
        case OpKind::activation:
        case OpKind::add:
        case OpKind::scale:
        case OpKind::cap:
        case OpKind::clip:
        case OpKind::gate:
        case OpKind::copy:
        case OpKind::keep:
        case OpKind::head_copy:
        case OpKind::input:
        case OpKind::xielu:
        case OpKind::multiply: return true;
        default: return false;
    }
}

// Some rows of a step while a stage works on them: rows [begin, begin + count) of its buffers,
// whose row i belongs to token output_rows[i] of the step, or to token i if output_rows is null.
class RowRun {
public:
    RowRun(Thread& thread, const Program& program, const Step& step, const int32_t* output_rows,
           const RowBuffer* buffers, void* workspace, int64_t begin, int64_t count)
        : thread_(thread),
          program_(program),
          step_(step),
          output_rows_(output_rows),
          buffers_(buffers),
          workspace_(workspace),
          begin_(begin),
          count_(count) {}

    // Runs ops [first, past) of the program.
    //
    // Neighbours that work row by row share one loop: an op reads only what the ops before it wrote
    // of the same row, so there is no barrier between them.
    void run(int64_t first, int64_t past) const {
        for (int64_t i = first; i < past;) {
            const Op& op = program_.ops[i];
            if (op.kind == OpKind::keep && step_.num_kept == 0) {
                ++i;
                continue;
            }
            const Span span(thread_.log(), SpanKind::op, i);
            if (!works_by_row(op.kind)) {
                run_kernel(op);
                ++i;
                continue;
            }
            const int64_t end = end_of_row_ops(i, past);
            share_rows(thread_, count_, [&](int64_t row) {
                for (int64_t j = i; j < end; ++j) run_row(program_.ops[j], row);
            });
            i = end;
        }
    }

private:
    // The token that row `row` of this run belongs to: arrays of the step have one entry per token.
    int64_t token_of(int64_t row) const {
        return output_rows_ ? output_rows_[begin_ + row] : begin_ + row;
    }
    // The place of row `row` of this run in a buffer; a local buffer holds only these rows.
    int64_t place_of(const Columns& columns, int64_t row) const {
        return program_.buffers[columns.buffer].is_local ? row : begin_ + row;
    }
    char* operands_of(const Columns& columns, int64_t row) const {
        return TACO_ISA::operands_of(program_.buffers[columns.buffer], buffers_[columns.buffer],
                                     place_of(columns, row));
    }
    float* floats_of(const Columns& columns, int64_t row) const {
        return buffers_[columns.buffer].floats(place_of(columns, row)) + columns.start;
    }
    RowScale* scale_of(const Columns& columns, int64_t row) const {
        return buffers_[columns.buffer].scales + place_of(columns, row);
    }

    int64_t end_of_row_ops(int64_t first, int64_t past) const {
        while (first < past && works_by_row(program_.ops[first].kind)) ++first;
        return first;
    }

    // A kernel over all rows of the run. It ends with a barrier.
    void run_kernel(const Op& op) const {
        switch (op.kind) {
            case OpKind::encode: return encode(op);
            case OpKind::linear: return linear(op);
            case OpKind::route: return route(op);
            case OpKind::experts: return multiply_experts(op);
            case OpKind::head_linear: return multiply_heads(op);
            default: return;
        }
    }

    void run_row(const Op& op, int64_t row) const {
        switch (op.kind) {
            case OpKind::embed: return embed(op, row);
            case OpKind::norm: return norm(op, row);
            case OpKind::rope: return rotate(op, row);
            case OpKind::activation: return activate(op, row);
            case OpKind::add:
                return add_row(floats_of(op.x, row), floats_of(op.y, row), op.x.size, op.factor);
            case OpKind::scale: return scale_row(floats_of(op.x, row), op.x.size, op.factor);
            case OpKind::cap: return cap_row(floats_of(op.x, row), op.x.size, op.factor);
            case OpKind::clip: return clip_row(floats_of(op.x, row), op.x.size, op.factor);
            case OpKind::gate:
                return gate_row(floats_of(op.x, row), floats_of(op.y, row), op.x.size, op.y.size);
            case OpKind::copy:
                std::copy_n(floats_of(op.x, row), op.x.size, floats_of(op.out, row));
                return;
            case OpKind::keep: return keep(op, row);
            case OpKind::head_copy: return copy_heads(op, row);
            case OpKind::input: return take_input(op, row);
            case OpKind::xielu: return xielu_row(floats_of(op.x, row), op.x.size, op.weight);
            case OpKind::multiply:
                return multiply_row(floats_of(op.x, row), floats_of(op.y, row), op.x.size);
            default: return;
        }
    }

    void embed(const Op& op, int64_t row) const {
        const int64_t token = token_of(row);
        float* out = floats_of(op.out, row);
        if (const float* given = given_embedding(op, token)) {
            std::copy_n(given, op.out.size, out);
            return;
        }
        const int32_t* indices = op.indexes_positions ? step_.positions : step_.token_ids;
        const int64_t index = indices[token] + op.offset;
        if (op.adds) {
            add_table_row(op.table, index, op.out.size, out);
        } else if (op.table.data) {
            copy_table_row(op.table, index, op.out.size, out);
        } else {
            copy_packed_row(op.matrix, index, op.out.size, out);
        }
    }

    // The embedding that the step gives for a token, or null.
    const float* given_embedding(const Op& op, int64_t token) const {
        if (op.indexes_positions || !step_.embedding_rows) return nullptr;
        const int64_t row = step_.embedding_rows[token];
        return row < 0 ? nullptr : step_.embeddings + row * op.out.size;
    }

    void norm(const Op& op, int64_t row) const {
        const Buffer& target = program_.buffers[op.out.buffer];
        if (target.type != DType::f32) {
            norm_row_encoded(op.norm, floats_of(op.x, row), op.x.size, op.weight, op.bias, op.eps,
                             target.type, operands_of(op.out, row), scale_of(op.out, row),
                             op.order);
            return;
        }
        norm_groups_row(op.norm, floats_of(op.x, row), op.x.size / op.group, op.group, op.weight,
                        op.bias, op.weight_step, op.eps, floats_of(op.out, row));
    }

    void encode(const Op& op) const {
        const DType type = program_.buffers[op.out.buffer].type;
        if (program_.buffers[op.x.buffer].type == DType::bf16) {
            return kernels().encode_operands(thread_, count_, op.x.size, operands_of(op.x, 0),
                                             operands_of(op.out, 0), scale_of(op.out, 0), op.order);
        }
        kernels().encode_rows(thread_, type, count_, op.x.size, floats_of(op.x, 0),
                              buffers_[op.x.buffer].float_stride(), operands_of(op.out, 0),
                              scale_of(op.out, 0), op.order);
    }

    void linear(const Op& op) const {
        const bool as_operands = program_.buffers[op.out.buffer].type == DType::bf16;
        const Rows rows = factors(op.x, op.matrix);
        void* out = as_operands ? static_cast<void*>(operands_of(op.out, 0)) : floats_of(op.out, 0);
        const int64_t stride = as_operands ? padded_k(DType::bf16, op.out.size)
                                           : buffers_[op.out.buffer].float_stride();
        Product product{rows,   op.matrix,   op.epilogue, op.activation, out,
                        stride, as_operands, op.alpha,    op.factor};
        if (op.adapters.a && step_.adapter_ids) product.adapters = multiply_adapters(op);
        kernels().multiply(thread_, product);
    }

    // What the adapters of rows add to a product; the workspace holds it until the product ends.
    AdapterRows multiply_adapters(const Op& op) const {
        AdapterProduct product{};
        product.adapters = op.adapters;
        product.rows = factors(op.y, *op.adapters.a);
        product.ids = output_rows_ ? step_.adapter_ids : step_.adapter_ids + begin_;
        product.tokens = output_rows_ ? output_rows_ + begin_ : nullptr;
        product.scratch = workspace_;
        return kernels().multiply_adapters(thread_, product);
    }

    // The columns as the left factor of a product with `matrix`.
    Rows factors(const Columns& x, const Matrix& matrix) const {
        if (matrix.type == DType::f32) {
            return {count_, floats_of(x, 0), buffers_[x.buffer].float_stride(), nullptr};
        }
        return {count_, operands_of(x, 0), padded_k(matrix.type, matrix.k), scale_of(x, 0)};
    }

    // Expert ids are int32 in a buffer of floats.
    int32_t* ids_of(const Op& op) const { return reinterpret_cast<int32_t*>(floats_of(op.ids, 0)); }
    int64_t stride_of(const Columns& columns) const {
        return buffers_[columns.buffer].float_stride();
    }

    void route(const Op& op) const {
        kernels().route(thread_, Routing{op.router, count_, floats_of(op.x, 0), stride_of(op.x),
                                         op.bias, ids_of(op), stride_of(op.ids),
                                         floats_of(op.weights, 0), stride_of(op.weights)});
    }

    void multiply_experts(const Op& op) const {
        ExpertProduct product = op.experts;
        product.rows = factors(op.x, *product.gate_up);
        product.ids = ids_of(op);
        product.ids_stride = stride_of(op.ids);
        product.weights = floats_of(op.weights, 0);
        product.weights_stride = stride_of(op.weights);
        product.out = floats_of(op.out, 0);
        product.out_stride = stride_of(op.out);
        product.adds = op.adds;
        product.scratch = workspace_;
        kernels().multiply_experts(thread_, product);
    }

    void rotate(const Op& op, int64_t row) const {
        const bool by_axis = op.num_sections && step_.rope_positions;
        const Rotation rotation{
            op.rotary_style, op.x.size / op.group,          op.group,   op.rotary_dim, op.cosines,
            op.sines,        by_axis ? op.num_sections : 0, op.sections};
        const int32_t* positions = by_axis ? step_.rope_positions : step_.positions;
        rotate_row(rotation, floats_of(op.x, row) + op.offset, positions + token_of(row),
                   step_.batch.num_tokens);
    }

    void activate(const Op& op, int64_t row) const {
        const float* x = floats_of(op.x, row);
        const int64_t size = op.out.size;
        float* out = floats_of(op.out, row);
        if (op.is_gated) {
            gate_up_row(op.activation, op.alpha, op.factor, x, x + size, size, out);
        } else {
            activate_row(op.activation, x, size, out);
        }
    }

    void multiply_heads(const Op& op) const {
        HeadProduct product{};
        product.num_heads = op.num_heads;
        product.count = count_;
        product.x = floats_of(op.x, 0);
        product.x_stride = buffers_[op.x.buffer].float_stride();
        product.x_head_stride = op.x_stride;
        product.matrix = op.matrix;
        if (op.y.buffer >= 0) {
            product.operands = buffers_[op.y.buffer].data;  // a local buffer, head after head
            product.scales = buffers_[op.y.buffer].scales;
        }
        product.out = floats_of(op.out, 0);
        product.out_stride = buffers_[op.out.buffer].float_stride();
        product.out_head_stride = op.out_stride;
        kernels().multiply_heads(thread_, product);
    }

    void copy_heads(const Op& op, int64_t row) const {
        const float* x = floats_of(op.x, row);
        float* out = floats_of(op.out, row);
        for (int64_t head = 0; head < op.num_heads; ++head) {
            std::copy_n(x + head * op.x_stride, op.group, out + head * op.out_stride);
        }
    }

    void take_input(const Op& op, int64_t row) const {
        const float* columns = step_.columns + token_of(row) * op.out.size;
        std::copy_n(columns, op.out.size, floats_of(op.out, row));
    }

    // Copies a layer's output if the step asks for it.
    void keep(const Op& op, int64_t row) const {
        for (int64_t i = 0; i < step_.num_kept; ++i) {
            if (step_.kept_layers[i] != op.index) continue;
            float* out = step_.kept + (token_of(row) * step_.num_kept + i) * op.x.size;
            std::copy_n(floats_of(op.x, row), op.x.size, out);
        }
    }

    Thread& thread_;
    const Program& program_;
    const Step& step_;
    const int32_t* output_rows_;
    const RowBuffer* buffers_;
    void* const workspace_;
    const int64_t begin_, count_;
};

}  // namespace TACO_ISA
