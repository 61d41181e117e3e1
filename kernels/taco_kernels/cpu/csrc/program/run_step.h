// One step of a program in one parallel region: the work of each thread.
//
// A token's numbers depend on that token's row and its sequence's keys and values alone. Every op
// works row by row, or is a kernel whose sums do not depend on other rows. So chunks, threads and
// skipped rows do not change a bit.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/copy_kv.h"
#include "program/run_rows.h"

namespace TACO_ISA {

// The attention of an op in a step, without the memory that it uses.
inline Attention attention_of(const Op& op, const KVCache& cache, const Batch& batch) {
    Attention attention = op.attention;
    attention.cache = cache;
    attention.batch = batch;
    return attention;
}

// The sequence of a row.
inline int64_t sequence_of(const Batch& batch, int64_t row) {
    const int32_t* past =
        std::upper_bound(batch.query_start, batch.query_start + batch.num_seqs, int32_t(row));
    return past - batch.query_start - 1;
}

// Tokens in the KV of a sequence up to a row of it. The KV need not begin at position 0.
inline int32_t seq_len_at(const Batch& batch, int64_t seq, int64_t row) {
    return batch.seq_lens[seq] - (batch.query_start[seq + 1] - 1 - int32_t(row));
}

// Adjacent output rows of one sequence: `first` and `count` of the outputs.
struct OutputRun {
    int64_t first, count, sequence;
};

// Calls body(OutputRun) for all output rows of a step, in order.
template <class Body>
void for_output_runs(const Step& step, Body body) {
    const int32_t* rows = step.output_rows;
    for (int64_t first = 0; first < step.num_outputs;) {
        const int64_t sequence = sequence_of(step.batch, rows[first]);
        const int32_t end = step.batch.query_start[sequence + 1];
        int64_t past = first + 1;
        while (past < step.num_outputs && rows[past] < end && rows[past] == rows[past - 1] + 1) {
            ++past;
        }
        body(OutputRun{first, past - first, sequence});
        first = past;
    }
}

// Tokens in the KV of a run's sequence up to its last row.
inline int32_t seq_len_of(const Step& step, const OutputRun& run) {
    return seq_len_at(step.batch, run.sequence, step.output_rows[run.first + run.count - 1]);
}

// The step of one thread.
class StepRun {
public:
    StepRun(Thread& thread, const Program& program, const Step& step, const ForwardScratch& scratch)
        : thread_(thread),
          program_(program),
          step_(step),
          scratch_(scratch),
          rows_(step.batch.num_tokens),
          batch_(step.batch) {
        std::copy_n(scratch.buffers, program.num_buffers, buffers_);
        buffers_[program.hidden] = hidden_rows();
    }

    void run() {
        clear_tails();
        for (int64_t i = 0; i < program_.num_stages; ++i) {
            const Stage& stage = program_.stages[i];
            if (stage.by_chunks) {
                run_chunks(stage);
            } else {
                const Span span(thread_.log(), SpanKind::op, stage.first);
                run_whole(program_.ops[stage.first]);
            }
            if (rows_ == 0) return;
        }
    }

private:
    // The caller's rows, which the final ops write.
    RowBuffer hidden_rows() const {
        const int64_t size = program_.buffers[program_.hidden].columns;
        return {reinterpret_cast<char*>(step_.hidden), size * int64_t(sizeof(float)), nullptr};
    }

    // Zeroes the padding to whole tiles, which kernels do not write.
    void clear_tails() {
        for (int64_t i = 0; i < program_.num_buffers; ++i) {
            const Buffer& buffer = program_.buffers[i];
            const int64_t used = buffer.columns * operand_bytes(buffer.type);
            const int64_t padding = buffers_[i].stride - used;  // less than a piece of a row
            if (!buffer.clears_tail || padding == 0) continue;
            share_rows(thread_, buffer.is_local ? chunk_rows(rows_) : rows_, [&](int64_t row) {
                std::memset(operands_of(buffer, buffers_[i], row, buffer.columns), 0,
                            size_t(padding));
            });
        }
    }

    void run_chunks(const Stage& stage) {
        for_chunks(rows_, [&](int64_t begin, int64_t count) {
            const RowRun rows(thread_, program_, step_, output_rows_, buffers_, scratch_.workspace,
                              begin, count);
            rows.run(stage.first, stage.first + stage.count);
        });
    }

    void run_whole(const Op& op) {
        switch (op.kind) {
            case OpKind::write_kv: return write_kv(op);
            case OpKind::attend: return attend(op);
            case OpKind::convolve: return convolve(op);
            case OpKind::recur: return recur(op);
            case OpKind::restrict_rows: return restrict_rows(op);
            default: return;
        }
    }

    void write_kv(const Op& op) {
        const RowBuffer& keys = buffers_[op.x.buffer];
        KeyValueRows rows{keys.floats(0) + op.x.start, keys.float_stride(), nullptr, 0};
        if (op.y.buffer >= 0) {
            const RowBuffer& values = buffers_[op.y.buffer];
            rows.values = values.floats(0) + op.y.start;
            rows.value_stride = values.float_stride();
        }
        kernels().write_kv(thread_, step_.cache, step_.batch, op.index, rows);
        if (step_.copies.count) copy_kv(thread_, step_.cache, step_.copies, op.index);
    }

    void attend(const Op& op) {
        const RowBuffer &queries = buffers_[op.x.buffer], &out = buffers_[op.out.buffer];
        Attention attention = attention_of(op, step_.cache, batch_);
        attention.queries = queries.floats(0) + op.x.start;
        attention.query_stride = queries.float_stride();
        attention.out_is_operand = program_.buffers[op.out.buffer].type == DType::bf16;
        if (attention.out_is_operand) {
            attention.out = out.row(0);
            attention.out_stride = padded_k(DType::bf16, op.out.size);
        } else {
            attention.out = out.floats(0) + op.out.start;
            attention.out_stride = out.float_stride();
        }
        attention.workspace = scratch_.workspace;
        kernels().attend(thread_, attention);
    }

    void convolve(const Op& op) {
        Convolution convolution = op.convolution;
        convolution.x = columns_of(op.x);
        convolution.out = columns_of(op.out);
        convolution.batch = states_of(op.convolution.batch);
        kernels().convolve(thread_, convolution);
    }

    void recur(const Op& op) {
        Recurrence recurrence = op.recurrence;
        recurrence.query = columns_of(op.x);
        recurrence.key = columns_of(op.y);
        recurrence.value = columns_of(op.value);
        recurrence.decay = columns_of(op.decay);
        if (op.beta.buffer >= 0) recurrence.beta = columns_of(op.beta);
        recurrence.out = columns_of(op.out);
        recurrence.batch = states_of(op.recurrence.batch);
        kernels().recur(thread_, recurrence);
    }

    TokenColumns columns_of(const Columns& columns) const {
        const RowBuffer& buffer = buffers_[columns.buffer];
        return {buffer.floats(0) + columns.start, buffer.float_stride()};
    }

    StateBatch states_of(const StateBatch& of_op) const {
        return {step_.batch.num_seqs, step_.batch.query_start, step_.states, of_op.start};
    }

    // Reduces the step to the output rows.
    void restrict_rows(const Op& op) {
        const int64_t outputs = step_.num_outputs;
        if (output_rows_ || outputs == rows_) return;
        if (!op.is_final && (!restricts_early(step_) || keeps_later(op))) return;
        if (!op.is_final) restrict_batch();  // attention follows
        share_rows(thread_, outputs, [&](int64_t i) {
            for (int64_t j = 0; j < op.num_live; ++j) {
                copy_row(op.live[j], step_.output_rows[i], i);
            }
        });
        for (int64_t j = 0; j < op.num_live; ++j) {
            buffers_[op.live[j]] = scratch_.restricted[op.live[j]];
        }
        output_rows_ = step_.output_rows;
        rows_ = outputs;
    }

    // Makes each run of output rows a sequence. The threads write its arrays together: they may be
    // read after the next barrier.
    void restrict_batch() {
        const int64_t stride = step_.batch.block_table_stride;
        int64_t count = 0;
        if (thread_.index() == 0) scratch_.query_start[0] = 0;
        for_output_runs(step_, [&](const OutputRun& run) {
            const int64_t i = count++;
            if (i % thread_.count() != thread_.index()) return;
            scratch_.query_start[i + 1] = int32_t(run.first + run.count);
            scratch_.seq_lens[i] = seq_len_of(step_, run);
            std::copy_n(step_.batch.block_tables + run.sequence * stride, stride,
                        scratch_.block_tables + i * stride);
        });
        batch_ = {step_.num_outputs,
                  count,
                  scratch_.query_start,
                  scratch_.seq_lens,
                  scratch_.block_tables,
                  stride,
                  nullptr};
    }

    // Whether an op after a restrict op copies a layer's output, which is wanted of all tokens.
    bool keeps_later(const Op& restrict_op) const {
        return std::any_of(step_.kept_layers, step_.kept_layers + step_.num_kept,
                           [&](int32_t layer) { return layer >= restrict_op.index; });
    }

    void copy_row(int32_t index, int64_t from, int64_t to) {
        const RowBuffer &source = buffers_[index], &target = scratch_.restricted[index];
        const DType type = program_.buffers[index].type;
        if (type == DType::f32) {
            std::memcpy(target.row(to), source.row(from), size_t(source.stride));
        } else {
            copy_operand_row(type, source.stride / operand_bytes(type), source.data, from,
                             target.data, to);
        }
        // Buffers of other types have no scales: their pointers are those of the next array.
        if (type == DType::i8) target.scales[to] = source.scales[from];
    }

    Thread& thread_;
    const Program& program_;
    const Step& step_;
    const ForwardScratch& scratch_;
    RowBuffer buffers_[MAX_BUFFERS];
    int64_t rows_;
    Batch batch_;
    const int32_t* output_rows_ = nullptr;  // the tokens of the rows; null: all tokens
};

// Whether two layers need the same workspace.
inline bool is_alike(const Attention& one, const Attention& other, const KVCache& cache) {
    const KVEntry &a = cache.entries[one.entry], &b = cache.entries[other.entry];
    return one.window == other.window && one.num_heads == other.num_heads &&
           a.num_heads == b.num_heads && a.key_dim == b.key_dim && a.value_dim == b.value_dim &&
           a.is_latent == b.is_latent;
}

// The largest attention workspace of any op. Throws std::bad_alloc.
inline int64_t attention_bytes(const Program& program, const Step& step, int num_threads) {
    int64_t most = 0;
    const auto consider = [&](const Batch& batch) {
        const Attention* before = nullptr;
        for (int64_t i = 0; i < program.num_ops; ++i) {
            const Op& op = program.ops[i];
            if (op.kind != OpKind::attend) continue;
            if (before && is_alike(*before, op.attention, step.cache)) continue;
            before = &op.attention;
            const Attention attention = attention_of(op, step.cache, batch);
            most = std::max(most, kernels().attention_workspace(attention, num_threads));
        }
    };
    consider(step.batch);
    if (!restricts_early(step) || step.num_outputs == 0) return most;

    std::vector<int32_t> query_start(1), seq_lens;
    for_output_runs(step, [&](const OutputRun& run) {
        query_start.push_back(int32_t(run.first + run.count));
        seq_lens.push_back(seq_len_of(step, run));
    });
    consider({step.num_outputs, int64_t(seq_lens.size()), query_start.data(), seq_lens.data(),
              nullptr, step.batch.block_table_stride, nullptr});
    return most;
}

// The stride of a buffer's rows as factors of products with a matrix.
inline int64_t row_stride_of(const Buffer& buffer, const Matrix& matrix) {
    return matrix.type == DType::f32 ? row_stride(buffer.columns) : padded_k(matrix.type, matrix.k);
}

// The largest scratch of any mixture of experts.
inline int64_t experts_bytes(const Program& program, const Step& step) {
    int64_t most = 0;
    for (int64_t i = 0; i < program.num_ops; ++i) {
        const Op& op = program.ops[i];
        if (op.kind != OpKind::experts) continue;
        ExpertProduct product = op.experts;
        product.rows.count = chunk_rows(step.batch.num_tokens);
        product.rows.stride = row_stride_of(program.buffers[op.x.buffer], *product.gate_up);
        most = std::max(most, kernels().experts_scratch_bytes(product));
    }
    return most;
}

// The largest scratch of any adapters.
inline int64_t adapters_bytes(const Program& program, const Step& step) {
    int64_t most = 0;
    for (int64_t i = 0; step.adapter_ids && i < program.num_ops; ++i) {
        const Op& op = program.ops[i];
        if (!op.adapters.a) continue;
        AdapterProduct product{};
        product.adapters = op.adapters;
        product.rows.count = chunk_rows(step.batch.num_tokens);
        product.rows.stride = row_stride_of(program.buffers[op.y.buffer], *op.adapters.a);
        most = std::max(most, kernels().adapters_scratch_bytes(product));
    }
    return most;
}

inline int64_t forward_bytes(const Program& program, const Step& step, int num_threads) {
    Arena counter(nullptr);
    // Attention, experts and adapters never run at the same time.
    ForwardScratch(counter, program, step,
                   std::max({attention_bytes(program, step, num_threads),
                             experts_bytes(program, step), adapters_bytes(program, step)}));
    return counter.used();
}

inline void forward(Thread& thread, const Program& program, const Step& step) {
    Arena arena(step.scratch);
    // The workspace comes last: its address does not depend on its size.
    const ForwardScratch scratch(arena, program, step, 0);
    StepRun(thread, program, step, scratch).run();
}

}  // namespace TACO_ISA
