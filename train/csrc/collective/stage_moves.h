// Moves between ranks of one host go through shared memory, those to other hosts through sockets.
#pragma once

#include "collective/moves.h"

namespace taco::collective {

// As `move`, for an operation that all ranks take part in; the group has a stage. `longest`: bytes
// of the longest stream between two ranks of the host, equal on all its ranks. `is_shared`: this
// rank's stream, parts that it sends to itself, goes to all other ranks of the host.
// `may_be_shorter`: see moves.h.
void move_by_stage(Group& group, const std::vector<Part>& sends, const std::vector<Part>& receives,
                   size_t longest, bool is_shared, bool may_be_shorter);

}  // namespace taco::collective
