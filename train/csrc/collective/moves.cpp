#include "collective/moves.h"

#include <algorithm>

#include "collective/stage_moves.h"

namespace taco::collective {
namespace {

constexpr size_t kBroadcastChunk = 256 << 10;

class Broadcast : public Work {
public:
    Broadcast(Group& group, char* data, size_t bytes, int parent, const std::vector<int>& children)
        : group_(group),
          data_(data),
          bytes_(bytes),
          parent_(parent),
          children_(children),
          num_chunks_((bytes + kBroadcastChunk - 1) / kBroadcastChunk),
          awaited_children_(static_cast<int>(children.size())) {
        for (int child : children) {
            group.mesh.receive(child, 0, nullptr, 0, &awaited_children_);
        }
    }

    bool advance() override {
        bool moved = group_.mesh.progress();
        if (!has_begun_ && awaited_children_ == 0) {
            has_begun_ = moved = true;
            begin();
        }
        while (has_begun_ && num_received_ < num_chunks_ && receiving_ == 0) {
            pass_on(num_received_++);
            receive_next();
            moved = true;
        }
        return moved;
    }

    bool done() const override {
        return has_begun_ && num_received_ == num_chunks_ && sending_ == 0;
    }
    int awaited_rank() const override { return group_.mesh.awaited_rank(); }
    const char* stage_name() const override { return "messages"; }

private:
    // All ranks below have begun the same operation: tells the rank above, or sends.
    void begin() {
        if (parent_ >= 0) {
            ++sending_;
            group_.mesh.send(parent_, 0, nullptr, 0, &sending_);
            return receive_next();
        }
        for (size_t i = 0; i < num_chunks_; ++i) pass_on(i);
        num_received_ = num_chunks_;
    }

    size_t length(size_t chunk) const {
        return std::min(kBroadcastChunk, bytes_ - chunk * kBroadcastChunk);
    }

    void receive_next() {
        if (num_received_ == num_chunks_) return;
        receiving_ = 1;
        group_.mesh.receive(parent_, static_cast<uint32_t>(num_received_) + 1,
                            data_ + num_received_ * kBroadcastChunk, length(num_received_),
                            &receiving_);
    }

    void pass_on(size_t chunk) {
        for (int child : children_) {
            ++sending_;
            group_.mesh.send(child, static_cast<uint32_t>(chunk) + 1,
                             data_ + chunk * kBroadcastChunk, length(chunk), &sending_);
        }
    }

    Group& group_;
    char* data_;
    size_t bytes_;
    int parent_;
    const std::vector<int>& children_;
    size_t num_chunks_, num_received_ = 0;
    int receiving_ = 0, sending_ = 0, awaited_children_;
    bool has_begun_ = false;
};

void begin(Group& group, const Description& description) {
    if (description.kind == Kind::exchange) return group.begin_exchange();
    group.begin(description);
    if (group.stage) group.stage->set(Counter::arrived, group.operation());
}

}  // namespace

Moves::Moves(Group& group, const std::vector<Part>& sends, const std::vector<Part>& receives,
             bool may_be_shorter)
    : group_(group),
      pending_(static_cast<int>(sends.size() + receives.size())),
      lengths_(receives.size()) {
    std::vector<uint32_t> sent(group.size()), received(group.size());
    for (size_t i = 0; i < receives.size(); ++i) {
        const Part& part = receives[i];
        group.mesh.receive(part.rank, received[part.rank]++, part.data, part.bytes, &pending_,
                           may_be_shorter ? &lengths_[i] : nullptr);
    }
    for (const Part& part : sends) {
        group.mesh.send(part.rank, sent[part.rank]++, part.data, part.bytes, &pending_);
    }
}

void move(Group& group, const Description& description, const std::vector<Part>& sends,
          const std::vector<Part>& receives, size_t longest, bool is_shared, bool may_be_shorter) {
    begin(group, description);
    if (group.stage && description.kind != Kind::exchange) {
        return move_by_stage(group, sends, receives, longest, is_shared, may_be_shorter);
    }
    Moves work(group, sends, receives, may_be_shorter);
    group.run(work);
}

void broadcast(Group& group, const Description& description, char* data, size_t bytes, int parent,
               const std::vector<int>& children) {
    begin(group, description);
    Broadcast work(group, data, bytes, parent, children);
    group.run(work);
}

}  // namespace taco::collective
