#include "collective/wire.h"

#include "collective/reduce.h"

namespace taco::collective {
namespace {

// Up to this size, one message with everything beats two with parts.
constexpr size_t kExchangeAllBytes = 8 << 10;

}  // namespace

Wire::Wire(Group& group, const AllReduceOptions& options)
    : group_(group), options_(options), accumulator_(accumulator_of(options.type)) {
    const bool is_ring = group.schedules[options.schedule].is_ring;
    // A ring passes partial sums on from rank to rank: they stay in float32.
    reduced_type_ = is_ring ? accumulator_ : options.type;
    gathered_type_ = options.type;
    if (options.type == Type::float32 && options.wire != WireFormat::dense) {
        reduced_type_ = gathered_type_ =
            options.wire == WireFormat::float16 ? Type::float16 : Type::bfloat16;
    }
    for (size_t i = 0; i < kDepth; ++i) chunks_[i].buffer = 1 + 3 * i;
}

char* Wire::buffer(Chunk& chunk, size_t index, size_t bytes) {
    std::vector<char>& memory = group_.buffers[chunk.buffer + index];
    if (memory.size() < bytes) memory.resize(bytes);
    return memory.data();
}

char* Wire::begin(size_t number, size_t count, char* work) {
    Chunk& chunk = chunks_[number % kDepth];
    chunk.started = chunk.finished = false;
    chunk.tag = static_cast<uint32_t>(number) * kMaxTags;
    chunk.count = count;
    chunk.step = 0;
    chunk.work = work ? work : buffer(chunk, 0, count * size_of(accumulator_));
    return chunk.work;
}

void Wire::start(size_t number) {
    Chunk& chunk = chunks_[number % kDepth];
    const bool exchange_all = chunk.count * size_of(options_.type) <= kExchangeAllBytes;
    chunk.steps =
        make_steps(group_.schedules[options_.schedule], group_.rank(), chunk.count, exchange_all);
    chunk.started = true;
    if (chunk.steps.num_reductions == 0) end_reductions(chunk);
    if (chunk.steps.steps.empty()) {
        chunk.finished = true;
    } else {
        begin_step(chunk);
    }
}

Type Wire::type_on_wire(const Chunk& chunk) const {
    return chunk.step < chunk.steps.num_reductions ? reduced_type_ : gathered_type_;
}

void Wire::begin_step(Chunk& chunk) {
    const Step& step = chunk.steps.steps[chunk.step];
    const Type type = type_on_wire(chunk);
    const size_t size = size_of(type);
    const uint32_t tag = chunk.tag + step.tag;
    chunk.pending = static_cast<int>(step.sends.size() + step.receives.size());
    size_t num_received = 0;
    for (const Transfer& transfer : step.receives) num_received += transfer.range.length();
    const bool in_place = step.kind == Step::Kind::gather && type == accumulator_;
    char* target = in_place ? nullptr : buffer(chunk, 2, num_received * size);
    for (const Transfer& transfer : step.receives) {
        const size_t bytes = transfer.range.length() * size;
        char* place = in_place ? at(chunk, transfer.range.begin) : target;
        group_.mesh.receive(transfer.rank, tag, place, bytes, &chunk.pending);
        if (!in_place) target += bytes;
    }
    // The whole chunk has a place, so that parts that go to several ranks are converted once each.
    char* encoded = type == accumulator_ ? nullptr : buffer(chunk, 1, chunk.count * size);
    Range last;
    for (const Transfer& transfer : step.sends) {
        const Range range = transfer.range;
        const char* source = at(chunk, range.begin);
        if (encoded) {
            char* converted = encoded + range.begin * size;
            if (range.begin != last.begin || range.end != last.end) {
                convert(type, converted, accumulator_, source, range.length());
            }
            last = range;
            source = converted;
        }
        group_.mesh.send(transfer.rank, tag, source, range.length() * size, &chunk.pending);
    }
}

bool Wire::advance() {
    bool moved = false;
    for (Chunk& chunk : chunks_) {
        while (chunk.started && !chunk.finished && chunk.pending == 0) {
            moved = true;
            end_step(chunk);
            if (++chunk.step == chunk.steps.num_reductions) end_reductions(chunk);
            if (chunk.step == chunk.steps.steps.size()) {
                chunk.finished = true;
            } else {
                begin_step(chunk);
            }
        }
    }
    return moved;
}

void Wire::end_step(Chunk& chunk) {
    const Step& step = chunk.steps.steps[chunk.step];
    const Type type = type_on_wire(chunk);
    if (step.kind == Step::Kind::reduce_all) return combine_all(chunk, step);
    if (step.kind == Step::Kind::gather && type == accumulator_) return;
    const char* received = buffer(chunk, 2, 0);
    for (const Transfer& transfer : step.receives) {
        const size_t length = transfer.range.length();
        char* target = at(chunk, transfer.range.begin);
        if (step.kind == Step::Kind::gather) {
            convert(accumulator_, target, type, received, length);
        } else if (type == accumulator_) {
            combine(accumulator_, options_.reduction, target, target, received, length);
        } else {
            const void* inputs[] = {received};
            char* widened = buffer(chunk, 1, length * size_of(accumulator_));
            reduce(type, options_.reduction, widened, inputs, 1, length);
            combine(accumulator_, options_.reduction, target, target, widened, length);
        }
        received += length * size_of(type);
    }
}

// Every rank combines the same values in the same order: its own as the others have them.
void Wire::combine_all(Chunk& chunk, const Step& step) {
    if (step.receives.empty()) return;
    const Type type = type_on_wire(chunk);
    const Range range = chunk.steps.owned;
    const size_t bytes = range.length() * size_of(type);
    const char* received = buffer(chunk, 2, 0);
    char* own = buffer(chunk, 1, bytes);
    convert(type, own, accumulator_, at(chunk, range.begin), range.length());
    std::vector<const void*> inputs;
    size_t next = 0;
    for (int rank : chunk.steps.order) {
        inputs.push_back(rank == group_.rank() ? own : received + bytes * next++);
    }
    reduce(type, options_.reduction, at(chunk, range.begin), inputs.data(), inputs.size(),
           range.length());
}

void Wire::end_reductions(Chunk& chunk) {
    const Range owned = chunk.steps.owned;
    char* values = at(chunk, owned.begin);
    if (options_.reduction == Reduction::average) {
        divide(accumulator_, values, owned.length(), group_.size());
    }
    if (gathered_type_ == accumulator_ || chunk.steps.steps.empty()) return;
    // The owner keeps what the others get.
    char* rounded = buffer(chunk, 1, chunk.count * size_of(gathered_type_));
    convert(gathered_type_, rounded, accumulator_, values, owned.length());
    convert(accumulator_, values, gathered_type_, rounded, owned.length());
}

}  // namespace taco::collective
