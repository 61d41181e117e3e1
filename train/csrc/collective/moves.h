// Collectives that move bytes and do no arithmetic between messages.
#pragma once

#include <vector>

#include "collective/group.h"

namespace taco::collective {

struct Part {
    int rank;
    char* data;
    size_t bytes;
};

// Sends and receives parts by sockets, all together.
class Moves : public Work {
public:
    Moves(Group& group, const std::vector<Part>& sends, const std::vector<Part>& receives,
          bool may_be_shorter);
    bool advance() override { return group_.mesh.progress(); }
    bool done() const override { return pending_ == 0; }
    int awaited_rank() const override { return group_.mesh.awaited_rank(); }
    const char* stage_name() const override { return "messages"; }

private:
    Group& group_;
    int pending_;
    std::vector<size_t> lengths_;  // of what was received
};

// Sends and receives all parts together: several parts of one rank arrive in the order they are
// listed. For `exchange` only the named ranks take part, otherwise all do. `longest`, `is_shared`:
// see stage_moves.h. `may_be_shorter`: the only part from a rank may be shorter than its place,
// whose rest has any bytes then. Throws Failure.
void move(Group& group, const Description& description, const std::vector<Part>& sends,
          const std::vector<Part>& receives, size_t longest, bool is_shared, bool may_be_shorter);

// From `parent` (-1: this rank is the root) to `children`, in chunks that are passed on as they
// come. Nothing is sent before all ranks have begun the same operation. Throws Failure.
void broadcast(Group& group, const Description& description, char* data, size_t bytes, int parent,
               const std::vector<int>& children);

}  // namespace taco::collective
