// One step of a decoder in one parallel region: the work of each thread.
//
// A token's numbers depend on that token's row and its sequence's keys and values alone. Every
// stage works row by row, or is a kernel whose sums do not depend on other rows. So chunks, threads
// and skipped rows do not change a bit.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/copy_kv.h"
#include "decoder/decoder_args.h"
#include "decoder/decoder_scratch.h"
#include "decoder/embedding.h"
#include "dispatch/isa_table.h"
#include "elementwise/norm.h"
#include "elementwise/rotary.h"

namespace TACO_ISA {

constexpr OperandBytes OPERAND_BYTES{sizeof(Bf16Operand), sizeof(Int8Operand)};

// The attention arguments that all layers share.
inline Attention decoder_attention(const Decoder& decoder, const KVCache& cache,
                                   const Batch& batch) {
    Attention attention{};
    attention.cache = cache;
    attention.batch = batch;
    attention.num_heads = decoder.num_heads;
    attention.scale = decoder.attention_scale;
    return attention;
}

// Whether the last layer computes the output rows alone. If most rows are outputs, as for log
// probabilities of a prompt, attention is faster over whole sequences.
inline bool restricts_rows(const Step& step) {
    return 2 * step.num_outputs <= step.batch.num_tokens;
}

// The batch in which each output row is a sequence with one query token.
inline Batch restricted_batch(const Step& step, const ForwardScratch& scratch) {
    return {step.num_outputs, step.num_outputs,     scratch.query_start,
            scratch.seq_lens, scratch.block_tables, step.batch.block_table_stride};
}

// Calls body(row) once for each row, on the next free thread. Ends with a barrier.
template <class Body>
void share_rows(Thread& thread, int64_t rows, Body body) {
    const int64_t grain = std::clamp<int64_t>(rows / (4 * thread.count()), 1, 16);
    thread.share(rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) body(row);
    });
}

// Encodes `count` float rows as operands of `matrix`. Floats need no encoding.
inline Rows encode(Thread& thread, const Matrix& matrix, int64_t count, const float* rows,
                   int64_t stride, void* operands, float* scales) {
    if (matrix.type == DType::f32) return {count, rows, stride, nullptr};
    kernels().encode_rows(thread, matrix.type, count, matrix.k, rows, stride, operands, scales);
    return {count, operands, padded_k(matrix.type, matrix.k), scales};
}

// The forward pass of one thread.
class ForwardPass {
public:
    ForwardPass(Thread& thread, const Decoder& decoder, const Step& step,
                const ForwardScratch& scratch)
        : thread_(thread),
          decoder_(decoder),
          step_(step),
          scratch_(scratch),
          stream_{scratch.hidden, scratch.hidden_stride, step.batch.num_tokens},
          queries_(scratch.qkv),
          query_stride_(scratch.qkv_stride),
          batch_(step.batch) {}

    void run() {
        embed();
        for (int64_t index = 0; index < decoder_.num_layers; ++index) {
            const DecoderLayer& layer = decoder_.layers[index];
            project_and_write_kv(layer, index);
            if (index + 1 == decoder_.num_layers && restricts_rows(step_)) {
                if (step_.num_outputs == 0) return;
                restrict_to_outputs();
            }
            attend_and_add(layer, index);
            feed_forward(layer);
            copy_hidden(index);
        }
        finish();
    }

private:
    // The rows of the residual stream that are still computed.
    struct Stream {
        float* rows;
        int64_t stride, count;

        float* row(int64_t index) const { return rows + index * stride; }
    };

    void embed() {
        const int64_t width = decoder_.embedding_size, hidden_size = decoder_.hidden_size;
        const bool projects = decoder_.embed_in.data != nullptr;
        share_rows(thread_, stream_.count, [&](int64_t row) {
            clear_padding(row);
            float* hidden = stream_.row(row);
            float* embedded = projects ? scratch_.qkv + row * scratch_.qkv_stride : hidden;
            if (decoder_.embeddings.data) {
                copy_table_row(decoder_.embeddings, step_.token_ids[row], width, embedded);
            } else {
                copy_packed_row(decoder_.lm_head, step_.token_ids[row], width, embedded);
            }
            if (projects) std::fill_n(hidden, hidden_size, 0.0f);
            if (decoder_.positions.data) {
                const int64_t position = step_.positions[row] + decoder_.position_offset;
                add_table_row(decoder_.positions, position, hidden_size, hidden);
            }
        });
        if (!projects) return;
        for_chunks(stream_.count, [&](int64_t begin, int64_t count) {
            const float* narrow = scratch_.qkv + begin * scratch_.qkv_stride;
            const Rows rows = encode(thread_, decoder_.embed_in, count, narrow, scratch_.qkv_stride,
                                     scratch_.operands, scratch_.scales);
            add_to_stream(rows, decoder_.embed_in, begin);
        });
    }

    // Zeroes the padding of a row to whole tiles, which kernels do not write.
    void clear_padding(int64_t row) const {
        const DecoderLayer& layer = decoder_.layers[0];
        clear_tail(scratch_.attended, layer.out, row);
        if (row < chunk_rows(stream_.count)) clear_tail(scratch_.inner, layer.down, row);
    }
    static void clear_tail(void* rows, const Matrix& matrix, int64_t row) {
        const int64_t row_bytes = OPERAND_BYTES.written_row(matrix);
        const int64_t used = matrix.k * (row_bytes / padded_k(matrix.type, matrix.k));
        std::memset(static_cast<char*>(rows) + row * row_bytes + used, 0, row_bytes - used);
    }

    // Computes queries, keys and values of all rows and writes keys and values to the cache.
    void project_and_write_kv(const DecoderLayer& layer, int64_t index) {
        for_chunks(stream_.count, [&](int64_t begin, int64_t count) {
            const Rows rows = prepare(layer.attn_norm, layer.qkv, begin, count);
            float* out = scratch_.qkv + begin * scratch_.qkv_stride;
            kernels().multiply(thread_, Product{rows, layer.qkv, Epilogue::store, Activation::none,
                                                out, scratch_.qkv_stride, false});
        });
        if (decoder_.cosines) rotate();
        const float* keys = scratch_.qkv + decoder_.query_size();
        kernels().write_kv(thread_, step_.cache, step_.batch, index,
                           KeyValueRows{keys, scratch_.qkv_stride, keys + decoder_.kv_size(),
                                        scratch_.qkv_stride});
        if (step_.copies.count) copy_kv(thread_, step_.cache, step_.copies, index);
    }

    void rotate() {
        const int64_t dim = decoder_.head_dim;
        const Rotation rotation{RotaryStyle::half,
                                decoder_.num_heads + decoder_.num_kv_heads,
                                dim,
                                dim,
                                decoder_.cosines,
                                decoder_.sines,
                                0,
                                nullptr};
        share_rows(thread_, step_.batch.num_tokens, [&](int64_t row) {
            rotate_row(rotation, scratch_.qkv + row * scratch_.qkv_stride, step_.positions + row);
        });
    }

    // Reduces the stream to the output rows, each a sequence of one query token.
    void restrict_to_outputs() {
        const Batch& all = step_.batch;
        const int64_t outputs = step_.num_outputs;
        share_rows(thread_, outputs, [&](int64_t i) {
            const int64_t row = step_.output_rows[i];
            std::copy_n(stream_.row(row), decoder_.hidden_size,
                        step_.hidden + i * decoder_.hidden_size);
            std::copy_n(scratch_.qkv + row * scratch_.qkv_stride, decoder_.query_size(),
                        scratch_.queries + i * scratch_.query_stride);
            const int32_t* past =
                std::upper_bound(all.query_start, all.query_start + all.num_seqs, int32_t(row));
            const int64_t seq = past - all.query_start - 1;
            std::copy_n(all.block_tables + seq * all.block_table_stride, all.block_table_stride,
                        scratch_.block_tables + i * all.block_table_stride);
            scratch_.query_start[i] = int32_t(i);
            scratch_.seq_lens[i] = step_.positions[row] + 1;
            if (i + 1 == outputs) scratch_.query_start[outputs] = int32_t(outputs);
        });
        stream_ = {step_.hidden, decoder_.hidden_size, outputs};
        queries_ = scratch_.queries;
        query_stride_ = scratch_.query_stride;
        batch_ = restricted_batch(step_, scratch_);
        is_restricted_ = true;
    }

    void attend_and_add(const DecoderLayer& layer, int64_t index) {
        const bool as_operands = layer.out.type == DType::bf16;
        const int64_t stride = padded_k(layer.out.type, layer.out.k);
        Attention attention = decoder_attention(decoder_, step_.cache, batch_);
        attention.entry = index;
        attention.window = layer.sliding_window;
        attention.queries = queries_;
        attention.query_stride = query_stride_;
        attention.out = scratch_.attended;
        attention.out_stride = stride;
        attention.out_is_operand = as_operands;
        attention.workspace = scratch_.attention;
        kernels().attend(thread_, attention);
        for_chunks(stream_.count, [&](int64_t begin, int64_t count) {
            const int64_t offset = begin * OPERAND_BYTES.written_row(layer.out);
            const void* attended = static_cast<const char*>(scratch_.attended) + offset;
            add_to_stream(written_rows(layer.out, count, attended), layer.out, begin);
        });
        if (!decoder_.pre_norm) norm_stream(layer.attn_norm);
    }

    void feed_forward(const DecoderLayer& layer) {
        const Epilogue epilogue = decoder_.gated_mlp ? Epilogue::gate_mul : Epilogue::store;
        const int64_t stride = padded_k(layer.down.type, layer.down.k);
        for_chunks(stream_.count, [&](int64_t begin, int64_t count) {
            const Rows rows = prepare(layer.mlp_norm, layer.up, begin, count);
            kernels().multiply(
                thread_, Product{rows, layer.up, epilogue, decoder_.activation, scratch_.inner,
                                 stride, layer.down.type == DType::bf16});
            add_to_stream(written_rows(layer.down, count, scratch_.inner), layer.down, begin);
        });
        if (!decoder_.pre_norm) norm_stream(layer.mlp_norm);
    }

    // Copies the residual stream after a layer, if it was asked for.
    void copy_hidden(int64_t index) {
        const int64_t hidden_size = decoder_.hidden_size;
        for (int64_t i = 0; i < step_.num_kept; ++i) {
            if (step_.kept_layers[i] != index) continue;
            share_rows(thread_, stream_.count, [&](int64_t row) {
                float* out = step_.kept + (row * step_.num_kept + i) * hidden_size;
                std::copy_n(stream_.row(row), hidden_size, out);
            });
        }
    }

    // Writes the requested hidden states, after the final norm.
    void finish() {
        share_rows(thread_, step_.num_outputs, [&](int64_t i) {
            const float* row = stream_.row(is_restricted_ ? i : step_.output_rows[i]);
            float* out = step_.hidden + i * decoder_.hidden_size;
            if (decoder_.final_norm.weight) {
                norm(decoder_.final_norm, row, out);
            } else if (out != row) {
                std::copy_n(row, decoder_.hidden_size, out);
            }
        });
    }

    // Rows of the stream as operands of `matrix`, after the norm of pre-norm models.
    Rows prepare(const NormWeights& weights, const Matrix& matrix, int64_t begin, int64_t count) {
        const float* rows = stream_.row(begin);
        if (!decoder_.pre_norm) {
            return encode(thread_, matrix, count, rows, stream_.stride, scratch_.operands,
                          scratch_.scales);
        }
        const int64_t stride = padded_k(matrix.type, matrix.k);
        const int64_t row_bytes = OPERAND_BYTES.row(matrix);
        share_rows(thread_, count, [&](int64_t row) {
            norm_row_encoded(decoder_.norm, rows + row * stream_.stride, matrix.k, weights.weight,
                             weights.bias, decoder_.norm_eps, matrix.type,
                             static_cast<char*>(scratch_.operands) + row * row_bytes,
                             scratch_.scales + row);
        });
        return {count, scratch_.operands, stride, scratch_.scales};
    }

    // Rows that a kernel wrote for `matrix`: operands already, or floats to encode.
    Rows written_rows(const Matrix& matrix, int64_t count, const void* rows) {
        const int64_t stride = padded_k(matrix.type, matrix.k);
        if (matrix.type == DType::bf16) return {count, rows, stride, nullptr};
        return encode(thread_, matrix, count, static_cast<const float*>(rows), stride,
                      scratch_.operands, scratch_.scales);
    }

    void add_to_stream(const Rows& rows, const Matrix& matrix, int64_t begin) {
        kernels().multiply(thread_, Product{rows, matrix, Epilogue::add, Activation::none,
                                            stream_.row(begin), stream_.stride, false});
    }

    void norm_stream(const NormWeights& weights) {
        share_rows(thread_, stream_.count,
                   [&](int64_t row) { norm(weights, stream_.row(row), stream_.row(row)); });
    }

    void norm(const NormWeights& weights, const float* row, float* out) const {
        norm_row(decoder_.norm, row, decoder_.hidden_size, weights.weight, weights.bias,
                 decoder_.norm_eps, out);
    }

    Thread& thread_;
    const Decoder& decoder_;
    const Step& step_;
    const ForwardScratch scratch_;
    Stream stream_;
    const float* queries_;
    int64_t query_stride_;
    Batch batch_;
    bool is_restricted_ = false;
};

// The largest attention workspace of any layer.
inline int64_t attention_bytes(const Decoder& decoder, const Step& step, int num_threads) {
    int64_t most = 0;
    const auto consider = [&](const Batch& batch) {
        Attention attention = decoder_attention(decoder, step.cache, batch);
        for (int64_t index = 0; index < decoder.num_layers; ++index) {
            const int64_t window = decoder.layers[index].sliding_window;
            if (index > 0 && window == attention.window) continue;
            attention.entry = index;
            attention.window = window;
            most = std::max(most, kernels().attention_workspace(attention, num_threads));
        }
    };
    consider(step.batch);
    if (!restricts_rows(step)) return most;

    std::vector<int32_t> query_start(1), seq_lens;
    for (int64_t i = 0; i < step.num_outputs; ++i) {
        query_start.push_back(int32_t(i + 1));
        seq_lens.push_back(step.positions[step.output_rows[i]] + 1);
    }
    if (step.num_outputs > 0) {
        consider({step.num_outputs, step.num_outputs, query_start.data(), seq_lens.data(), nullptr,
                  step.batch.block_table_stride});
    }
    return most;
}

inline int64_t forward_bytes(const Decoder& decoder, const Step& step, int num_threads) {
    Arena counter(nullptr);
    ForwardScratch(counter, OPERAND_BYTES, decoder, step,
                   attention_bytes(decoder, step, num_threads));
    return counter.used();
}

inline void forward(Thread& thread, const Decoder& decoder, const Step& step) {
    Arena arena(step.scratch);
    // The attention workspace comes last: its address does not depend on its size.
    const ForwardScratch scratch(arena, OPERAND_BYTES, decoder, step, 0);
    ForwardPass(thread, decoder, step, scratch).run();
}

}  // namespace TACO_ISA
